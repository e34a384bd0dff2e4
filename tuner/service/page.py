"""The page of the service's interface: its OpenAPI document for a person. No script, nothing from afar."""

from typing import Any

import jinja2

_PAGE = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
    """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{ title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2rem; font-size: 1.1rem; border-top: 1px solid #8884; padding-top: 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: .9rem; }
b { display: inline-block; min-width: 4rem; }
table { border-collapse: collapse; } td { padding: .2rem 1rem .2rem 0; vertical-align: top; }
:root { color-scheme: light dark; }
</style>
<h1>{{ title }}</h1>
<p>{{ description }}</p>
<p>The same for programs: <a href="openapi.json">openapi.json</a>.</p>
{% for one in operations %}
<h2 id="{{ one.id }}"><b>{{ one.method }}</b> <code>{{ one.path }}</code></h2>
<p>{{ one.text }}</p>
<table>
{% for field in one.fields %}
<tr><td><code>{{ field.name }}</code></td><td>{{ field.place }}</td><td>{{ field.kind }}</td>
<td>{{ field.text }}</td></tr>
{% endfor %}
</table>
<p>Answers:
{% for status, text in one.answers %}
<code>{{ status }}</code> {{ text }}
{% endfor %}
</p>
{% endfor %}
</html>
"""
)


def page(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    operations = [
        {
            "id": operation["operationId"],
            "method": method.upper(),
            "path": path,
            "text": operation.get("description", operation.get("summary", "")),
            "fields": [*_parameters(operation), *_body(operation, document)],
            "answers": [(status, answer["description"]) for status, answer in operation["responses"].items()],
        }
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    info = document["info"]
    return _PAGE.render(title=info["title"], description=info["description"], operations=operations)


def _parameters(operation: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "name": one["name"],
            "place": one["in"],
            "kind": _kind(one["schema"]),
            "text": one.get("description", ""),
        }
        for one in operation.get("parameters", ())
    ]


def _body(operation: dict[str, Any], document: dict[str, Any]) -> list[dict[str, str]]:
    content = operation.get("requestBody", {}).get("content", {})
    reference = content.get("application/json", {}).get("schema", {}).get("$ref")
    if reference is None:
        return [{"name": kind, "place": "body", "kind": "", "text": ""} for kind in content]
    schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    return [
        {"name": name, "place": "body", "kind": _kind(field), "text": field.get("description", "")}
        for name, field in schema["properties"].items()
    ]


def _kind(schema: dict[str, Any]) -> str:
    """The type in a word or two: "string or null"."""
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    return str(schema.get("const", schema.get("type", "")))
