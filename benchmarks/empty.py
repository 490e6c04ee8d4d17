"""FastAPI routes that do nothing, served by uvicorn with the service's settings: one reads its
body, one declares it.
"""

from __future__ import annotations

import os
from typing import Any

import uvicorn
from fastapi import FastAPI, Request

app = FastAPI()


@app.post("/read")
async def read(request: Request) -> dict[str, Any]:
    await request.body()
    return {}


@app.post("/declared")
async def declared(body: dict[str, Any]) -> dict[str, Any]:
    return {}


if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(os.environ["ANCHORAGE_PORT"]),
        http="httptools",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
    )
