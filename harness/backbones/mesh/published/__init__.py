"""Published mesh models: BPT and DeepMesh."""
