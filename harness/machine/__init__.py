"""The machine under a run: clocks' disturbances, memory, energy, devices, folders and optional packages."""
