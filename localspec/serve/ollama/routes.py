"""Ollama's paths."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from localspec.errors import BadValue
from localspec.library import Library, StoredModel
from localspec.library.catalogue import TEXT
from localspec.serve.ollama.requests import Asked, Chat, Generate, Named
from localspec.serve.ollama.responses import ChatWriter, GenerateWriter
from localspec.serve.pool import Pool, Served, known
from localspec.serve.respond import respond


def routes(pool: Pool, library: Library) -> APIRouter:
    """Return the paths of Ollama's API for the models of a pool."""
    router = APIRouter(prefix="/api")

    @router.post("/chat")
    async def chat(body: Chat, client: Request) -> Response:
        served = await _served(pool, library, body)
        return await respond(served, body.request(), client, ChatWriter(body.model), streams=body.stream)

    @router.post("/generate")
    async def generate(body: Generate, client: Request) -> Response:
        if not body.prompt:
            return JSONResponse(await _moved(pool, library, body))
        served = await _served(pool, library, body)
        return await respond(served, body.request(), client, GenerateWriter(body.model), streams=body.stream)

    @router.get("/tags")
    def tags() -> dict[str, Any]:
        return {"models": [_described(model) for model in library.all(TEXT)]}

    @router.get("/ps")
    def running() -> dict[str, Any]:
        return {"models": [_running(served, pool) for served in pool.loaded]}

    @router.post("/show")
    def show(body: Named) -> dict[str, Any]:
        name = known(pool, library, body.model)
        loaded = (served.runtime.model for served in pool.loaded if served.name == name)
        model = next(loaded, None) or library.find(name)
        template = model.template() if model else None
        return {
            "details": _details(model) if model else {},
            "template": template.source if template else "",
            "parameters": "",
            "model_info": {},
            "capabilities": _capabilities(model),
        }

    @router.get("/version")
    def our_version() -> dict[str, str]:
        return {"version": version("localspec")}

    return router


def _capabilities(model: StoredModel | None) -> list[str]:
    """Return what a model can do, by Ollama's names."""
    tools = ["tools"] if model and model.template() else []
    return ["completion", *tools, *(["vision"] if model and model.sees else [])]


async def _served(pool: Pool, library: Library, body: Asked) -> Served:
    """Return the model that a request names, which then stays as long as it says.

    Raises BadValue for a context that the model does not have.
    """
    seconds = body.seconds
    served = await pool.get(known(pool, library, body.model))
    wanted, context = body.options.num_ctx, served.runtime.engine.context
    if wanted is not None and wanted > context:
        raise BadValue(f"`num_ctx` is {wanted}, and the model's context is {context}", None)
    if seconds is not None:
        served.keep_alive = seconds
    return served


async def _moved(pool: Pool, library: Library, body: Generate) -> dict[str, Any]:
    """Load a model, or let it leave once nobody waits for it, and return what Ollama says then."""
    name = known(pool, library, body.model)
    leaves = body.seconds == 0
    if not leaves:
        await _served(pool, library, body)
    for served in pool.loaded:
        if leaves and served.name == name:
            served.keep_alive = 0.0
    pool.drop_idle()
    done = {"response": "", "done": True, "done_reason": "unload" if leaves else "load"}
    return {"model": body.model, "created_at": datetime.now(UTC).isoformat(), **done}


def _running(served: Served, pool: Pool) -> dict[str, Any]:
    """Return a loaded model; one without `expires_at` stays for ever."""
    runtime, left = served.runtime, pool.seconds_left(served)
    leaves = None if left == float("inf") else datetime.now(UTC) + timedelta(seconds=left)
    return {
        **_described(runtime.model),
        "size_vram": 0,
        "context_length": runtime.engine.context,
        "expires_at": leaves and leaves.isoformat(),
        "localspec": {
            "engine": str(runtime.resolution.target.spec),
            "draft": str(runtime.draft_spec),
            "requests": served.waiting,
        },
    }


def _described(model: StoredModel) -> dict[str, Any]:
    files = [file for file in model.folder.rglob("*") if file.is_file()]
    changed = max((file.stat().st_mtime for file in files), default=0.0)
    digests = model.manifest.digests
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": datetime.fromtimestamp(changed, UTC).isoformat(),
        "size": sum(file.stat().st_size for file in files),
        "digest": next(iter(digests.values()), ""),
        "details": _details(model),
    }


def _details(model: StoredModel) -> dict[str, Any]:
    return {
        "format": "openvino" if model.files_in("openvino") else "gguf",
        "family": "",
        "families": None,
        "parent_model": "",
        "parameter_size": "",
        "quantization_level": model.manifest.precision or "",
    }
