"""What depends on the platform: folders, and workarounds for one platform or one library version."""
