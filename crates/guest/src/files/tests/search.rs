use super::*;
use crate::files::{glob, grep};
use ringfence_proto::{Code, GlobRequest, GrepMode, GrepRequest};

fn tree(resolver: Resolver) -> World {
    let world = World::new(resolver);
    world.file("src/main.rs", "fn main() {}\nlet Needle = 1;\n// end\n");
    world.file("src/deep/mod.rs", "needle\nneedle\n");
    world.file("README.md", "no match\n");
    world.file(".hidden/x.rs", "needle\n");
    world.file(".env", "needle\n");
    world.file("target/out.rs", "needle\n");
    world.file(".gitignore", "/target\n*.log\n!keep.log\n");
    world.file("src/a.log", "needle\n");
    world.file("src/keep.log", "needle\n");
    world.file("src/.gitignore", "deep/\n");
    world.file("binary.rs", b"needle\0needle\n");
    world.link("out", &world.outside);
    world
}

fn globbed(world: &World, path: &str, pattern: &str, hidden: bool, gitignore: bool) -> Vec<String> {
    let ask = GlobRequest {
        root: WORKSPACE.to_owned(),
        path: path.to_owned(),
        pattern: pattern.to_owned(),
        hidden,
        gitignore,
        limit: None,
    };
    let result = glob::glob(&world.root, &ask, &go()).unwrap();
    result.entries.into_iter().map(|e| e.path).collect()
}

#[test]
fn globs() {
    for resolver in BOTH {
        let world = tree(resolver);
        assert_eq!(globbed(&world, ".", "*.md", false, false), ["README.md"]);
        assert_eq!(
            globbed(&world, ".", "src/*.rs", false, false),
            ["src/main.rs"]
        );
        let all = [
            "binary.rs",
            "src/deep/mod.rs",
            "src/main.rs",
            "target/out.rs",
        ];
        assert_eq!(globbed(&world, ".", "**/*.rs", false, false), all);
        assert_eq!(
            globbed(&world, ".", "**/*.rs", false, true),
            ["binary.rs", "src/main.rs"]
        );
        assert_eq!(
            globbed(&world, "src", "**/*.rs", false, true),
            ["src/main.rs"]
        );
        assert_eq!(
            globbed(&world, "src", "*.log", false, true),
            ["src/keep.log"]
        );
        assert_eq!(
            globbed(&world, ".", "**/x.rs", true, false),
            [".hidden/x.rs"]
        );
        assert_eq!(globbed(&world, ".", ".env", false, false), [".env"]);
        assert_eq!(
            globbed(&world, "src", "./{main,deep}*", false, false),
            ["src/deep", "src/main.rs"]
        );
        assert!(globbed(&world, ".", "out/*", true, false).is_empty());
        assert!(globbed(&world, ".", "**/secret", true, false).is_empty());
    }
}

#[test]
fn bad_globs_and_limits() {
    let world = tree(Resolver::Openat2);
    let ask = |path: &str, pattern: &str, limit| GlobRequest {
        root: WORKSPACE.to_owned(),
        path: path.to_owned(),
        pattern: pattern.to_owned(),
        hidden: false,
        gitignore: false,
        limit,
    };
    let refused = |ask| glob::glob(&world.root, &ask, &go()).unwrap_err().code;
    assert_eq!(refused(ask(".", "[", None)), Code::InvalidInput);
    assert_eq!(refused(ask(".", "", None)), Code::InvalidInput);
    assert_eq!(refused(ask(".", "*", Some(0))), Code::InvalidInput);
    assert_eq!(refused(ask(".", "*", Some(100_001))), Code::InvalidInput);
    assert_eq!(refused(ask("out", "*", None)), Code::Forbidden);
    assert_eq!(refused(ask("..", "*", None)), Code::Forbidden);
    let result = glob::glob(&world.root, &ask(".", "**", Some(2)), &go()).unwrap();
    assert_eq!((result.entries.len(), result.truncated), (2, true));
}

fn ask(pattern: &str) -> GrepRequest {
    serde_json::from_value(serde_json::json!({ "pattern": pattern })).unwrap()
}

#[test]
fn greps() {
    for resolver in BOTH {
        let world = tree(resolver);
        let grep = |ask: &GrepRequest| grep::grep(&world.root, ask, &go());
        let found = |ask: &GrepRequest| {
            let result = grep(ask).unwrap();
            assert!(!result.truncated);
            result
                .files
                .into_iter()
                .map(|f| (f.path, f.count))
                .collect::<Vec<_>>()
        };
        let pair = |path: &str, count| (path.to_owned(), count);
        assert_eq!(
            found(&GrepRequest {
                gitignore: true,
                ..ask("needle")
            }),
            [pair("src/keep.log", 1)]
        );
        let rust = GrepRequest {
            ignore_case: true,
            glob: Some("**/*.rs".to_owned()),
            mode: GrepMode::Count,
            ..ask("NEEDLE")
        };
        assert_eq!(
            found(&rust),
            [
                pair("src/deep/mod.rs", 2),
                pair("src/main.rs", 1),
                pair("target/out.rs", 1)
            ]
        );
        let files = GrepRequest {
            mode: GrepMode::Files,
            path: "src/deep".into(),
            ..ask("n.+e$")
        };
        assert_eq!(found(&files), [pair("src/deep/mod.rs", 1)]);

        let lines = grep(&GrepRequest {
            context: 1,
            path: "src/main.rs".into(),
            ..ask("Needle")
        });
        let lines = lines.unwrap().files.remove(0).lines;
        let lines: Vec<_> = lines
            .iter()
            .map(|l| (l.number, l.text.as_str(), l.matched))
            .collect();
        assert_eq!(
            lines,
            [
                (1, "fn main() {}", false),
                (2, "let Needle = 1;", true),
                (3, "// end", false)
            ]
        );
        assert!(
            found(&GrepRequest {
                fixed: true,
                ..ask("main.*")
            })
            .is_empty()
        );
        assert_eq!(
            found(&GrepRequest {
                fixed: true,
                ..ask("main()")
            }),
            [pair("src/main.rs", 1)]
        );
        assert!(found(&ask("outside")).is_empty());
        assert!(
            found(&GrepRequest {
                path: "binary.rs".into(),
                ..ask("needle")
            })
            .is_empty()
        );

        let cut = grep(&GrepRequest {
            limit: Some(1),
            path: "src/deep".into(),
            ..ask("needle")
        });
        let cut = cut.unwrap();
        assert_eq!((cut.files[0].lines.len(), cut.truncated), (1, true));
        for bad in [
            ask("("),
            ask("a\nb"),
            GrepRequest {
                limit: Some(0),
                ..ask("x")
            },
            GrepRequest {
                context: 1_001,
                ..ask("x")
            },
            GrepRequest {
                glob: Some("[".into()),
                ..ask("x")
            },
        ] {
            assert_eq!(grep(&bad).unwrap_err().code, Code::InvalidInput);
        }
        for out in ["out", "out/secret", ".."] {
            let refused = grep(&GrepRequest {
                path: out.into(),
                ..ask("x")
            })
            .unwrap_err();
            assert!(refused.code == Code::Forbidden, "{out}: {refused}");
        }
    }
}

#[test]
fn long_lines_are_cut() {
    let world = World::new(Resolver::Openat2);
    world.file("long", format!("needle{}", "\u{e9}".repeat(5_000)));
    let result = grep::grep(&world.root, &ask("needle"), &go()).unwrap();
    assert!(result.files[0].lines[0].text.len() <= 2_000);
    // A line that is longer than the search may hold is said, not held.
    world.file("longer", "x".repeat(40 << 20));
    let result = grep::grep(&world.root, &ask("needle"), &go()).unwrap();
    assert_eq!((result.files.len(), result.truncated), (1, true));
}
