"""Voilà, as `llamapar explorer` starts it: what it lets a browser do, and when a kernel ends.

- A page may ask its own server and no other host for anything, its WebSocket included; Voilà's own page asks
  a CDN for icons that nothing here shows. As in JupyterLab no other site may frame it, and the server answers
  only where it is asked for by a name of this machine: no foreign name can be made to lead a browser here.
- Each page has a kernel of its own. A page that is left or loaded anew asks Voilà to end it, with a token
  that it reads from a cookie. Voilà never sets that cookie, and so refuses; here each page gets it. A browser
  that was killed asks for nothing and leaves a kernel without a page: Jupyter's culler ends it. The kernel of
  a page that is open stays, however long nobody touches it.
"""

from jupyter_server._tz import utcnow
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager


class Kernels(AsyncMappingKernelManager):
    """Jupyter's kernels, where the time without a page begins when the page has gone."""

    def notify_disconnect(self, kernel_id):
        super().notify_disconnect(kernel_id)
        if kernel_id in self:  # Jupyter counts from the last message, which may be an hour old.
            self.get_kernel(kernel_id).last_activity = utcnow()


def with_token(handler, notebook, cwd):
    """Set the cookie that a page of Voilà proves itself with when it ends its kernel."""
    _ = handler.xsrf_token


SOURCES = "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:"  # 'self' is ws: of this server, too
c = get_config()  # noqa: F821
c.Voila.tornado_settings = {
    "allow_remote_access": False,
    "headers": {
        "Content-Security-Policy": f"{SOURCES}; object-src 'none'; base-uri 'self'; frame-ancestors 'self'"
    },
}
c.VoilaConfiguration.prelaunch_hook = with_token
c.VoilaConfiguration.multi_kernel_manager_class = Kernels
c.MappingKernelManager.cull_idle_timeout = 40
c.MappingKernelManager.cull_interval = 5
