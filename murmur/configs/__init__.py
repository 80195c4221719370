"""The run specs of this release, and who reads them."""
