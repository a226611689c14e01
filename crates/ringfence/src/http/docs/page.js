"use strict";
// Draws openapi.json. All text is put in as text, never as markup.
const METHODS = ["get", "post", "put", "patch", "delete"];

const make = (name, attributes, ...children) => {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (key === "onclick") node.addEventListener("click", value);
    else node.setAttribute(key, value);
  }
  node.append(...children.flat(Infinity).filter((child) => child != null && child !== ""));
  return node;
};

// Paragraphs, with `code` in them.
const prose = (text) =>
  (text ?? "").split(/\n\s*\n/).filter(Boolean).map((part) =>
    make("p", null, part.split("`").map((piece, i) => (i % 2 ? make("code", null, piece) : piece))));

const inline = (text) =>
  (text ?? "").split("`").map((piece, i) => (i % 2 ? make("code", null, piece) : piece));

let api;

const resolve = (thing) => {
  let name = null;
  while (thing?.$ref) {
    name = thing.$ref.split("/").pop();
    thing = thing.$ref.slice(2).split("/").reduce((at, key) => at?.[key.replaceAll("~1", "/")], api);
  }
  return [thing ?? {}, name];
};

const isNull = (schema) => schema?.type === "null";

// A schema in a few words.
const words = (schema) => {
  const [it, name] = resolve(schema);
  if (schema?.$ref && (it.properties || it.oneOf || it.allOf)) return name;
  if (it.const !== undefined) return JSON.stringify(it.const);
  if (it.enum) return it.enum.map((value) => JSON.stringify(value)).join(" | ");
  const several = it.oneOf ?? it.anyOf;
  if (several) return several.map(words).join(" | ");
  if (it.allOf) return it.allOf.map(words).join(" & ");
  const types = [it.type ?? "any"].flat();
  return types.map((type) => {
    if (type === "array") return `${words(it.items)}[]`;
    if (type === "object" && it.additionalProperties && typeof it.additionalProperties === "object")
      return `map of ${words(it.additionalProperties)}`;
    return type;
  }).join(" | ");
};

const bounds = (schema) => {
  const [it] = resolve(schema);
  const said = [];
  const add = (key, text) => it[key] !== undefined && said.push(`${text} ${it[key]}`);
  add("minimum", "at least"); add("maximum", "at most"); add("minLength", "min length");
  add("maxLength", "max length"); add("minItems", "min items"); add("maxItems", "max items");
  add("pattern", "pattern"); add("format", "format");
  if (it.default !== undefined) said.push(`default ${JSON.stringify(it.default)}`);
  return said.join(", ");
};

// The fields below a schema; nothing where there are none.
const fields = (schema, seen = []) => {
  const [it, name] = resolve(schema);
  if (name && seen.includes(name)) return null;
  const below = name ? [...seen, name] : seen;
  const parts = it.allOf ?? it.oneOf ?? it.anyOf;
  if (parts) {
    const drawn = parts.filter((part) => !isNull(part)).map((part) => fields(part, below)).filter(Boolean);
    if (!drawn.length) return null;
    if (it.allOf) return make("div", null, drawn);
    return make("div", null, drawn.map((one, i) => [i ? make("p", { class: "soft" }, "or") : "", one]).flat());
  }
  if (it.items) return fields(it.items, below);
  if (!it.properties) {
    return typeof it.additionalProperties === "object" ? fields(it.additionalProperties, below) : null;
  }
  return make("ul", { class: "fields" }, Object.entries(it.properties).map(([key, value]) => {
    const [inner] = resolve(value);
    const nested = fields(value, below);
    return make("li", null,
      make("code", null, key), " ", make("span", { class: "soft" }, words(value)), " ",
      it.required?.includes(key) ? make("span", { class: "must" }, "required") : "",
      make("div", null, inline(value.description ?? inner.description)),
      bounds(value) ? make("div", { class: "soft" }, bounds(value)) : "",
      nested ? make("details", null, make("summary", null, "fields"), nested) : "");
  }));
};

// An example that says what a value looks like.
const example = (schema, seen = []) => {
  const [it, name] = resolve(schema);
  if (it.example !== undefined) return it.example;
  if (it.examples?.length) return it.examples[0];
  if (it.default !== undefined && it.default !== null) return it.default;
  if (it.const !== undefined) return it.const;
  if (it.enum) return it.enum[0];
  if (name && seen.includes(name)) return {};
  const below = name ? [...seen, name] : seen;
  const one = (it.oneOf ?? it.anyOf)?.find((part) => !isNull(part));
  if (one) return example(one, below);
  if (it.allOf) return Object.assign({}, ...it.allOf.map((part) => example(part, below)));
  const type = [it.type].flat().find((t) => t !== "null");
  if (type === "object" || it.properties) {
    const wanted = it.required ?? [];
    return Object.fromEntries(wanted.map((key) => [key, example(it.properties?.[key], below)]));
  }
  if (type === "array") return [example(it.items, below)];
  if (type === "integer" || type === "number") return it.minimum ?? 1;
  if (type === "boolean") return false;
  return "…";
};

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

const curl = (path, method, operation, media, body) => {
  const query = (operation.parameters ?? []).map((p) => resolve(p)[0])
    .filter((p) => p.in === "query" && p.required)
    .map((p) => `${p.name}=${p.name.toUpperCase()}`).join("&");
  const url = location.origin + path.replace(/\{(\w+)\}/g, (_, n) => n.toUpperCase()) + (query ? `?${query}` : "");
  const lines = [`curl${method === "get" ? "" : ` -X ${method.toUpperCase()}`} ${quote(url)}`];
  if (!operation.security || operation.security.length) lines.push(`-H "authorization: Bearer $KEY"`);
  if (media === "application/json") {
    lines.push("-H 'content-type: application/json'", `-d ${quote(JSON.stringify(body))}`);
  } else if (media === "multipart/form-data") lines.push("-F file=@FILE");
  else if (media) lines.push(`-H 'content-type: ${media}'`, "--data-binary @FILE");
  return lines.join(" \\\n  ");
};

const copyable = (text) => {
  const button = make("button", { class: "copy", type: "button", onclick: () => {
    navigator.clipboard?.writeText(text).then(() => { button.textContent = "copied"; });
  } }, "copy");
  return make("pre", null, button, make("code", null, text));
};

const content = (contents) => Object.entries(contents ?? {}).map(([media, { schema }]) => [
  make("div", null, make("code", null, media), " ", make("span", { class: "soft" }, words(schema))),
  fields(schema) ?? "",
]).flat();

const body = (path, method, operation) => {
  const parameters = (operation.parameters ?? []).map((p) => resolve(p)[0]);
  const [request] = resolve(operation.requestBody);
  const media = Object.keys(request.content ?? {})[0];
  const sample = media === "application/json" ? example(request.content[media].schema) : null;
  const answers = Object.entries(operation.responses).map(([status, answer]) => [status, resolve(answer)[0]]);
  const row = ([status, answer]) => make("tr", null, make("td", null, make("code", null, status)),
    make("td", null, inline(answer.description), status < "400" ? content(answer.content) : "",
      Object.entries(answer.headers ?? {}).map(([name, header]) => make("div", { class: "soft" },
        "header ", make("code", null, name), " ", inline(header.description)))));
  const good = answers.filter(([status]) => status < "400");
  const bad = answers.filter(([status]) => status >= "400");
  return make("div", null,
    prose(operation.description),
    parameters.length ? [make("h4", null, "Parameters"), make("table", null, parameters.map((p) =>
      make("tr", null,
        make("td", null, make("code", null, p.name), make("div", { class: "soft" }, p.in)),
        make("td", null, make("span", { class: "soft" }, words(p.schema)), " ",
          p.required ? make("span", { class: "must" }, "required") : "",
          make("div", null, inline(p.description)),
          bounds(p.schema) ? make("div", { class: "soft" }, bounds(p.schema)) : ""))))] : [],
    media ? [make("h4", null, "Body"), content(request.content)] : [],
    [make("h4", null, "Answers"), make("table", null, good.map(row))],
    bad.length ? make("details", null, make("summary", null, `failures: ${bad.map(([s]) => s).join(", ")}`),
      make("table", null, bad.map(row))) : "",
    [make("h4", null, "With curl"), copyable(curl(path, method, operation, media, sample))]);
};

const draw = () => {
  const main = document.getElementById("main");
  const list = document.getElementById("list");
  main.replaceChildren(
    make("h1", null, `${api.info.title} ${api.info.version}`),
    make("p", { class: "soft" }, "OpenAPI ", api.openapi, " · ",
      make("a", { href: "openapi.json" }, "openapi.json"), " · ", api.info.license?.name ?? ""),
    ...prose(api.info.description));
  for (const tag of api.tags) {
    main.append(make("h2", { id: tag.name }, tag.name), ...prose(tag.description));
    list.append(make("h4", null, tag.name));
    for (const [path, item] of Object.entries(api.paths)) {
      for (const method of METHODS) {
        const operation = item[method];
        if (!operation?.tags?.includes(tag.name)) continue;
        const id = operation.operationId;
        const article = make("article", { id });
        let open = null;
        const toggle = (wanted = !open) => {
          if (wanted && !open) article.append((open = body(path, method, operation)));
          else if (!wanted && open) { open.remove(); open = null; }
          head.setAttribute("aria-expanded", String(Boolean(open)));
        };
        const head = make("header", { role: "button", tabindex: "0", "aria-expanded": "false", onclick: () => toggle() },
          make("div", { class: "route" }, make("span", { class: `method ${method}` }, method.toUpperCase()),
            make("span", { class: "path" }, path)),
          make("h3", null, inline(operation.summary)));
        head.addEventListener("keydown", (event) => {
          if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); }
        });
        article.append(head);
        article.unfold = () => toggle(true);
        main.append(article);
        const link = make("a", { href: `#${id}`, onclick: () => toggle(true) },
          make("span", { class: `method ${method}` }, method.toUpperCase()), path.replace("/sessions/{session}", "…"));
        link.dataset.text = `${method} ${path} ${operation.summary} ${id}`.toLowerCase();
        list.append(link);
      }
    }
  }
  document.getElementById("find").addEventListener("input", (event) => {
    const wanted = event.target.value.trim().toLowerCase();
    for (const link of list.querySelectorAll("a")) link.hidden = !link.dataset.text.includes(wanted);
  });
  const there = location.hash ? document.getElementById(location.hash.slice(1)) : null;
  there?.unfold?.();
  there?.scrollIntoView();
};

fetch("openapi.json")
  .then((answer) => answer.json())
  .then((description) => { api = description; draw(); })
  .catch((error) => {
    document.getElementById("main").replaceChildren(make("p", null, `cannot read openapi.json: ${error.message}`));
  });
