"""A real JupyterLab in Chromium; a package, so that its files may share names with those in tests/."""
