"""`headrace ui`: a live page of a cluster, served to browsers. It needs the extra `headrace[ui]`.

`access.py` decides who may see it, `documents.py` and `attention.py` what the page shows, `patches.py` what a browser
does not know yet. `application.py` answers requests, `streams.py` sends updates, `server.py` listens. `static/` is the
page itself: HTML, CSS and JavaScript modules, as browsers read them.
"""
