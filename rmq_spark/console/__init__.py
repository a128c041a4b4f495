"""The console: pages in the browser that show queues, and change them if allowed.

Needs Starlette, Jinja2 and uvicorn: rmq-spark[console]. Read app first: it says which function
answers which address. A page is a function that returns a dict, which one address shows as HTML
and another one as JSON. auth decides who may see and change anything; actions and jobs change
queues; state is what requests share.

Why Starlette and Jinja2, and neither NiceGUI nor htmx: NiceGUI keeps a socket and a state on the
server for each page, brings some megabytes of scripts, and needs inline styles, which a strict
content security policy forbids. htmx would have to be copied into the package. The pages only need
to fetch themselves again and replace some parts, which static/live.js does in few lines.
"""
