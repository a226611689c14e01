//! TypeScript and JSX to JavaScript, with a map back to what was written. Runs in a process of its
//! own: see [`super::translate`].

use super::translate::{Fault, Translation};
use oxc::allocator::Allocator;
use oxc::ast::ast::{Program, Statement, StringLiteral};
use oxc::codegen::{Codegen, CodegenOptions};
use oxc::diagnostics::{Diagnostics, OxcDiagnostic};
use oxc::parser::{Parser, ParserReturn};
use oxc::semantic::SemanticBuilder;
use oxc::span::SourceType;
use oxc::transformer::{
    JsxOptions, JsxRuntime, RewriteExtensionsMode, TransformOptions, Transformer, TypeScriptOptions,
};
use std::collections::BTreeMap;
use std::path::Path;

/// Most faults of one file that are told.
const FAULTS: usize = 20;

/// The name that a file has as JavaScript, where it is not that already.
pub(super) fn translated_name(name: &str) -> Option<String> {
    let (stem, end) = name.rsplit_once('.')?;
    let declares = stem.ends_with(".d");
    match end {
        "ts" | "tsx" | "jsx" if !declares => Some(format!("{stem}.js")),
        "mts" if !declares => Some(format!("{stem}.mjs")),
        "cts" if !declares => Some(format!("{stem}.cjs")),
        _ => None,
    }
}

/// Translates the main file and all others that need it; the names are those of JavaScript.
pub(super) fn translate(
    main: &str,
    files: &BTreeMap<String, String>,
) -> Result<Translation, Vec<Fault>> {
    let mut done = Translation::default();
    let mut faults = Vec::new();
    for (name, text) in files {
        let translated = translated_name(name);
        if name != main && translated.is_none() {
            continue;
        }
        match file(name, text, translated.is_some()) {
            Ok((code, module)) => {
                done.module |= module && name == main;
                if let Some(code) = code {
                    done.files
                        .insert(translated.unwrap_or_else(|| name.clone()), code);
                }
            }
            Err(more) => faults.extend(more),
        }
    }
    match faults.is_empty() {
        true => Ok(done),
        false => Err(faults),
    }
}

/// The file as JavaScript where it is not that already, and whether it is a module.
fn file(name: &str, text: &str, typed: bool) -> Result<(Option<String>, bool), Vec<Fault>> {
    let allocator = Allocator::default();
    let (parsed, source) = parse(&allocator, name, text);
    if parsed.diagnostics.has_errors() {
        return Err(faults(name, text, &parsed.diagnostics));
    }
    let module = source.is_module()
        && (parsed.module_record.has_module_syntax
            || (text.contains("await") && awaits_at_top(text, source)));
    // JavaScript is read as JSX only where it can't be read without.
    if !typed && !source.is_jsx() {
        return Ok((None, module));
    }
    let mut program = parsed.program;
    let semantic = SemanticBuilder::new()
        .with_excess_capacity(2.0)
        .with_enum_eval(true)
        .with_check_syntax_error(true)
        .build(&program);
    if semantic.diagnostics.has_errors() {
        return Err(faults(name, text, &semantic.diagnostics));
    }
    let options = TransformOptions {
        typescript: TypeScriptOptions {
            rewrite_import_extensions: Some(RewriteExtensionsMode::Rewrite),
            ..TypeScriptOptions::default()
        },
        jsx: JsxOptions {
            jsx_plugin: true,
            runtime: JsxRuntime::Classic,
            ..JsxOptions::disable()
        },
        ..TransformOptions::default()
    };
    let path = Path::new(name);
    let scoping = semantic.semantic.into_scoping();
    let transformed =
        Transformer::new(&allocator, path, &options).build_with_scoping(scoping, &mut program);
    if transformed.diagnostics.has_errors() {
        return Err(faults(name, text, &transformed.diagnostics));
    }
    complete_imports(&allocator, &mut program);
    let file_name = path.file_name().unwrap_or_default();
    let printed = Codegen::new()
        .with_options(CodegenOptions {
            source_map_path: Some(file_name.into()),
            ..CodegenOptions::default()
        })
        .build(&program);
    let mut code = printed.code;
    if let Some(map) = printed.map {
        code.push_str("\n//# sourceMappingURL=");
        code.push_str(&map.to_data_url());
        code.push('\n');
    }
    Ok((Some(code), module))
}

/// `<T>x` is an assertion in TypeScript and an element in JSX, and scripts may do what modules may
/// not: whichever the file can be read as, else that in which it goes wrong last.
fn parse<'a>(
    allocator: &'a Allocator,
    name: &str,
    text: &'a str,
) -> (ParserReturn<'a>, SourceType) {
    let end = name.rsplit('.').next().unwrap_or_default();
    let (plain, jsx) = match end {
        "ts" | "mts" | "cts" => (SourceType::ts(), SourceType::tsx()),
        "tsx" => (SourceType::tsx(), SourceType::ts()),
        _ => (SourceType::mjs(), SourceType::jsx()),
    };
    let kinds = [plain, jsx].map(|kind| kind.with_module(true));
    let scripts = kinds.map(|kind| kind.with_commonjs(true));
    let others = kinds.into_iter().chain(scripts).skip(1);
    let read = |kind| (Parser::new(allocator, text, kind).parse(), kind);
    let mut best = read(kinds[0]);
    for kind in others {
        if !best.0.diagnostics.has_errors() {
            break;
        }
        let other = read(kind);
        if first_error(&other.0) > first_error(&best.0) {
            best = other;
        }
    }
    best
}

/// Where it goes wrong; behind all else where it does not.
fn first_error(parsed: &ParserReturn<'_>) -> usize {
    let first = parsed.diagnostics.errors().next();
    first.map_or(usize::MAX, offset)
}

fn offset(error: &OxcDiagnostic) -> usize {
    error
        .labels
        .first()
        .map_or(0, |label| label.offset() as usize)
}

/// Whether the file can't be a script: `await` is an operator there only inside of functions.
fn awaits_at_top(text: &str, module: SourceType) -> bool {
    let allocator = Allocator::default();
    let script = Parser::new(&allocator, text, module.with_commonjs(true)).parse();
    if script.diagnostics.has_errors() {
        return true;
    }
    let semantic = SemanticBuilder::new().build(&script.program).semantic;
    let unresolved = semantic.scoping().root_unresolved_references();
    unresolved.keys().any(|name| name.as_str() == "await")
}

/// Node wants the ends of names that TypeScript lets one leave out.
fn complete_imports<'a>(allocator: &'a Allocator, program: &mut Program<'a>) {
    for statement in &mut program.body {
        match statement {
            Statement::ImportDeclaration(import) => complete(allocator, &mut import.source),
            Statement::ExportAllDeclaration(export) => complete(allocator, &mut export.source),
            Statement::ExportFromDeclaration(export) => complete(allocator, &mut export.source),
            _ => {}
        }
    }
}

fn complete<'a>(allocator: &'a Allocator, source: &mut StringLiteral<'a>) {
    let value = source.value.as_str();
    let relative = value.starts_with("./") || value.starts_with("../");
    let last = value.rsplit('/').next().unwrap_or_default();
    let ended = [".js", ".mjs", ".cjs", ".json", ".node", ".wasm"];
    if !relative || ended.iter().any(|end| last.ends_with(end)) {
        return;
    }
    let value = match value.strip_suffix(".tsx") {
        Some(stem) => format!("{stem}.js"),
        None => format!("{value}.js"),
    };
    source.value = allocator.alloc_str(&value).into();
    source.raw = None;
}

fn faults(name: &str, text: &str, diagnostics: &Diagnostics) -> Vec<Fault> {
    diagnostics
        .errors()
        .take(FAULTS)
        .map(|error| {
            let (line, column) = place(text, offset(error));
            Fault {
                file: name.to_owned(),
                line,
                column,
                message: error.message.to_string(),
            }
        })
        .collect()
}

/// Line and column of a byte, both from 1; columns are counted as Node counts them.
fn place(text: &str, offset: usize) -> (u32, u32) {
    let offset = text.floor_char_boundary(offset);
    let before = &text[..offset];
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let column = before[start..].encode_utf16().count() + 1;
    (line as u32, column as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, text: &str) -> Result<(String, bool), Vec<Fault>> {
        let files = BTreeMap::from([(name.to_owned(), text.to_owned())]);
        let done = translate(name, &files)?;
        let code = done.files.into_values().next().unwrap_or_default();
        Ok((code, done.module))
    }

    #[test]
    fn types_go_and_a_map_stays() {
        let (code, module) = one(
            "main.ts",
            "enum Color { Red = 1 }\ninterface A { x: number }\n\
             class P { constructor(private y: string) {} }\n\
             const a: A = { x: <number>Color.Red };\nconsole.log(a.x satisfies number, new P('q'));\n",
        )
        .unwrap();
        assert!(!module);
        for gone in ["interface", "private", ": A", "satisfies"] {
            assert!(!code.contains(gone), "{gone} in {code}");
        }
        assert!(code.contains("sourceMappingURL=data:"), "{code}");
    }

    #[test]
    fn modules_are_known_by_their_words() {
        for (text, module) in [
            ("let a: number = 1", false),
            ("import fs from 'node:fs'; fs;", true),
            ("export const a = 1", true),
            ("await Promise.resolve(1)", true),
            ("await (Promise.resolve(1))", true),
            ("for await (const a of []) {}", true),
            ("async function f() { await 1 }", false),
            ("const s = 'await'; require('fs')", false),
        ] {
            assert_eq!(one("main.ts", text).unwrap().1, module, "{text}");
            let js = text.replace(": number", "");
            assert_eq!(one("main.js", &js).unwrap().1, module, "{js}");
        }
    }

    #[test]
    fn imports_get_the_end_that_node_wants() {
        let text = "import { a } from './a'; import { b } from './b.ts'; import c from 'c';\n\
                    import { d } from './d.js'; export * from '../e'; import f from './f.tsx';\n\
                    console.log(a, b, c, d, f)";
        let (code, _) = one("main.ts", text).unwrap();
        for there in [
            "\"./a.js\"",
            "\"./b.js\"",
            "\"c\"",
            "\"./d.js\"",
            "\"../e.js\"",
            "\"./f.js\"",
        ] {
            assert!(code.contains(there), "{there} in {code}");
        }
    }

    #[test]
    fn elements_become_calls() {
        let (code, _) = one("main.ts", "const a: any = <b id='1'>x</b>").unwrap();
        assert!(code.contains("React.createElement(\"b\""), "{code}");
    }

    #[test]
    fn javascript_stays_as_it_is_unless_it_has_elements() {
        let (code, module) = one("main.js", "show(<b id='1'>x</b>)").unwrap();
        assert!(code.contains("React.createElement(\"b\""), "{code}");
        assert!(code.contains("sourceMappingURL=data:"), "{code}");
        assert!(!module);
        for plain in [
            "const s = '<b>x</b>'",
            "import fs from 'fs'",
            "a = b </c>/.exec(d)",
        ] {
            assert_eq!(one("main.js", plain).unwrap().0, "", "{plain}");
        }
    }

    #[test]
    fn scripts_may_do_what_modules_may_not() {
        for text in [
            "var a = 010 // important",
            "with (Math) { console.log(PI) } // await",
        ] {
            assert_eq!(
                one("main.js", text).unwrap(),
                (String::new(), false),
                "{text}"
            );
        }
    }

    #[test]
    fn faults_are_those_of_the_kind_that_the_file_is() {
        let text = "const a: number = 1\nconst b = <b>{a}</b>\nlet c: = 5\n";
        let faults = one("main.ts", text).unwrap_err();
        assert_eq!((faults[0].line, faults[0].column), (3, 8));
        let faults = one("main.js", "show(<b>x</b>)\nlet c = = 5\n").unwrap_err();
        assert_eq!((faults[0].line, faults[0].column), (2, 9));
    }

    #[test]
    fn faults_have_a_place() {
        let faults = one("main.ts", "let ok = 1\nlet x: = 5\n").unwrap_err();
        assert_eq!((faults[0].line, faults[0].column), (2, 8));
        assert_eq!(faults[0].file, "main.ts");
        let faults = one("main.ts", "const é = 'é'; let ok = 1; let ok = 2").unwrap_err();
        assert!(!faults.is_empty());
    }
}
