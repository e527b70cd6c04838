"""Python runs this file when it starts, if its directory is in PYTHONPATH: Spark's Python processes connect to proxies.

CHAOS_PORTS has the port of each proxy by the port of its broker, as JSON.
"""

import json
import os

if "CHAOS_PORTS" in os.environ:
    from chaos.clients.redirection import redirect

    redirect(json.loads(os.environ["CHAOS_PORTS"]))
