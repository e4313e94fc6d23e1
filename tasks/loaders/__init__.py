"""What tasks share: files of published data, their fields, and base classes by kind of prompt."""
