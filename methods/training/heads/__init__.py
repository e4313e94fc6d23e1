"""Recipes of prediction heads: Medusa's, blockwise decoding's and XSpecMesh's."""
