"""Commands on published tasks."""
