"""What depends on the platform: devices, folders, stand-ins for heavy libraries, workarounds for single libraries."""
