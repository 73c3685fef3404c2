"""Voilà, as `llamapar explorer` starts it: the browser is told to ask no other host for anything.

Voilà's own page asks a CDN for icons that nothing here shows.
"""

c = get_config()  # noqa: F821
c.Voila.tornado_settings = {
    "headers": {"Content-Security-Policy": "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob: ws:"}
}
