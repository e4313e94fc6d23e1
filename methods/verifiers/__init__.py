"""Pure functions of tensors that judge drafts."""
