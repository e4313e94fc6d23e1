"""Tables and figures of papers/xspecmesh."""
