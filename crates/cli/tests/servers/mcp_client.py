"""Drives an MCP server with the official Python client, and prints as JSON what the client got.

usage: mcp_client.py BINARY <plan
The plan on stdin is JSON: {"args": [words of the server], "calls": [[tool, arguments, {"cancel_s": N}?], ...], "mode": "auto" or "legacy"}.
An argument "$N.run" is the run of result N.
"""
import asyncio
import json
import sys

from mcp import Client, StdioServerParameters

plan = json.load(sys.stdin)
results = []


def filled(value):
    if isinstance(value, str) and value.startswith("$"):
        number, key = value[1:].split(".")
        return results[int(number)]["structured"][key]
    return value


async def call(client, tool, arguments, options):
    progress = []

    async def seen(done, total, message):
        progress.append({"done": done, "total": total, "message": message})

    arguments = {key: filled(value) for key, value in arguments.items()}
    asked = client.call_tool(tool, arguments, progress_callback=seen)
    try:
        result = await (asyncio.wait_for(asked, options["cancel_s"]) if "cancel_s" in options else asked)
    except asyncio.TimeoutError:
        return {"cancelled": True, "progress": progress}
    except Exception as error:
        return {"protocol_error": str(error)}
    return {
        "text": result.content[0].text,
        "texts": [part.text for part in result.content],
        "structured": result.structured_content,
        "is_error": bool(result.is_error),
        "progress": progress,
    }


async def main():
    server = StdioServerParameters(command=sys.argv[1], args=["mcp", *plan["args"]])
    async with Client(server, mode=plan.get("mode", "auto")) as client:
        tools = (await client.list_tools()).tools
        for tool, arguments, *options in plan["calls"]:
            results.append(await call(client, tool, arguments, options[0] if options else {}))
        told = {
            "instructions": client.instructions,
            "protocol": client.protocol_version,
            "tools": {tool.name: tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools},
            "results": results,
        }
    print(json.dumps(told))


asyncio.run(main())
