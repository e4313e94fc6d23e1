"""A Llama of two layers with random weights, as a preset."""

TINY = """
adapter: hf_causal
source:
  random:
    model_type: llama
    seed: 1
    config: {vocab_size: 31, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4,
             num_key_value_heads: 2, max_position_embeddings: 64, initializer_range: 0.3, bos_token_id: null,
             eos_token_id: null}
licence: none
note: a test
"""
