use super::{Language, Source, Step};

const fn run(argv: &'static [&'static str]) -> Step {
    Step {
        argv,
        stand_in: false,
    }
}

const fn instead(argv: &'static [&'static str]) -> Step {
    Step {
        argv,
        stand_in: true,
    }
}

/// A program that is interpreted, from plain text, and needs nothing of `/etc`.
const PLAIN: Language = Language {
    name: "",
    aliases: &[],
    file: "",
    source: Source::Plain,
    compile: None,
    run: &[],
    image: "",
    etc: &[],
    env: &[],
    package: "",
};

const NODE: &[Step] = &[run(&["node", "{maps}", "{file}"])];

/// Every language, those of the contract first.
pub static LANGUAGES: &[Language] = &[
    Language {
        name: "python",
        aliases: &["python3", "py"],
        file: "main.py",
        run: &[run(&["python3", "{file}"])],
        image: "python:3.11-slim",
        package: "python3",
        ..PLAIN
    },
    Language {
        name: "javascript",
        aliases: &["node", "js"],
        file: "main.js",
        source: Source::JavaScript,
        run: NODE,
        image: "node:22-alpine",
        package: "nodejs",
        ..PLAIN
    },
    Language {
        name: "typescript",
        aliases: &["ts"],
        file: "main.ts",
        source: Source::TypeScript,
        run: NODE,
        image: "node:22-slim",
        package: "nodejs",
        ..PLAIN
    },
    Language {
        name: "ruby",
        aliases: &["rb"],
        file: "main.rb",
        run: &[run(&["ruby", "{file}"])],
        image: "ruby:3.3-alpine",
        package: "ruby",
        ..PLAIN
    },
    Language {
        name: "php",
        file: "main.php",
        source: Source::Php,
        // Without a log: the errors go to the output, once.
        run: &[run(&[
            "php",
            "-d",
            "display_errors=stderr",
            "-d",
            "log_errors=0",
            "{file}",
        ])],
        image: "php:8.3-cli-alpine",
        // Where Debian, and others, keep its settings; extensions are loaded by them.
        etc: &["alternatives", "php", "php.d", "php.ini"],
        package: "php-cli",
        ..PLAIN
    },
    Language {
        name: "perl",
        aliases: &["pl"],
        file: "main.pl",
        run: &[run(&["perl", "{file}"])],
        image: "perl:5.40-slim",
        package: "perl",
        ..PLAIN
    },
    Language {
        name: "lua",
        file: "main.lua",
        run: &[
            run(&["lua5.4", "{file}"]),
            run(&["lua", "{file}"]),
            run(&["lua5.3", "{file}"]),
        ],
        // No small image has it by itself; see images/languages.
        image: "nickblah/lua:5.4-alpine",
        package: "lua5.4",
        ..PLAIN
    },
    Language {
        name: "r",
        aliases: &["rscript"],
        file: "main.R",
        // By itself it does not say in which line an error is.
        run: &[run(&[
            "Rscript",
            "-e",
            "local({ code <- parse('{file}', keep.source = TRUE); \
             for (i in seq_along(code)) withCallingHandlers({ \
             value <- withVisible(eval(code[[i]], globalenv())); \
             if (value$visible) print(value$value) }, error = function(e) \
             message('{file}:', attr(code, 'srcref')[[i]][1], ': error')) })",
        ])],
        image: "r-base:4.4.1",
        etc: &["R", "alternatives"],
        package: "r-base-core",
        ..PLAIN
    },
    Language {
        name: "bash",
        aliases: &["shell"],
        file: "main.sh",
        run: &[run(&["bash", "{file}"]), instead(&["sh", "{file}"])],
        image: "alpine:3.20",
        package: "bash",
        ..PLAIN
    },
    Language {
        name: "sh",
        file: "main.sh",
        run: &[run(&["sh", "{file}"])],
        image: "alpine:3.20",
        package: "dash",
        ..PLAIN
    },
    Language {
        name: "zsh",
        file: "main.zsh",
        run: &[run(&["zsh", "{file}"]), instead(&["sh", "{file}"])],
        image: "alpine:3.20",
        etc: &["alternatives"],
        package: "zsh",
        ..PLAIN
    },
    Language {
        name: "go",
        aliases: &["golang"],
        file: "main.go",
        compile: Some(run(&["go", "build", "-o", "{build}/main", "{sources}"])),
        run: &[run(&["{build}/main"])],
        image: "golang:1.23",
        env: &[
            ("GOCACHE", "/tmp/go/cache"),
            ("GOPATH", "/tmp/go"),
            ("GOTMPDIR", "/tmp"),
            ("GO111MODULE", "off"),
            ("GOTOOLCHAIN", "local"),
            ("GOTELEMETRY", "off"),
        ],
        package: "golang-go",
        ..PLAIN
    },
    Language {
        name: "rust",
        aliases: &["rs"],
        file: "main.rs",
        compile: Some(run(&[
            "rustc",
            "--edition=2021",
            "-Copt-level=1",
            "-Cdebuginfo=0",
            "-Cstrip=symbols",
            "-o",
            "{build}/main",
            "{file}",
        ])),
        run: &[run(&["{build}/main"])],
        image: "rust:1.83-slim",
        etc: &["alternatives"],
        package: "rustc",
        ..PLAIN
    },
    Language {
        name: "java",
        file: "Main.java",
        source: Source::Java,
        compile: Some(run(&["javac", "-g", "-d", "{build}", "{sources}"])),
        run: &[run(&[
            "java",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Xshare:auto",
            "-cp",
            "{build}",
            "{main}",
        ])],
        image: "eclipse-temurin:21",
        etc: &[
            "alternatives",
            "java-17-openjdk",
            "java-21-openjdk",
            "java-25-openjdk",
        ],
        package: "default-jdk-headless",
        ..PLAIN
    },
    Language {
        name: "c",
        file: "main.c",
        compile: Some(run(&[
            "gcc",
            "-O1",
            "-g",
            "-Wall",
            "-o",
            "{build}/main",
            "{sources}",
            "-lm",
        ])),
        run: &[run(&["{build}/main"])],
        image: "gcc:14",
        etc: &["alternatives"],
        package: "gcc libc6-dev",
        ..PLAIN
    },
    Language {
        name: "c++",
        aliases: &["cpp", "cxx"],
        file: "main.cpp",
        compile: Some(run(&[
            "g++",
            "-std=c++17",
            "-O1",
            "-g",
            "-Wall",
            "-o",
            "{build}/main",
            "{sources}",
        ])),
        run: &[run(&["{build}/main"])],
        image: "gcc:14",
        etc: &["alternatives"],
        package: "g++",
        ..PLAIN
    },
];
