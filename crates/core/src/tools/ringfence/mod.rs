//! The default tools: few, each with one clear purpose.

mod files;
mod run;

use super::{Effect, Param, Run, Tool};

const PATH: &str = "Absolute, or relative to /workspace.";
const JOB: Param = Param::text("job", "The job's id, such as job_1f0c.");

pub(super) static TOOLS: &[Tool] = &[
    Tool {
        name: "python",
        about: "Run Python code in a notebook-like interpreter that keeps variables, imports and \
            functions from call to call. The value of the last expression is shown, and so are \
            figures (matplotlib) and displayed images. Use it for calculations, data, charts, and \
            anything you would do in a notebook; use bash for programs and shell work. The working \
            folder is /workspace; files stay. Code that runs longer than timeout is interrupted \
            and the variables are kept. The network is off unless the sandbox was made with it. \
            Long output is shortened in the middle. \
            Example: {\"code\": \"import math\\nmath.sqrt(2)\"}",
        params: &[
            Param::text("code", "Python source; any number of lines."),
            Param::seconds("timeout", 60, "Seconds until it is interrupted."),
        ],
        effect: Effect::Runs,
        run: Run::Inside(|on, args| Box::pin(run::python(on, args))),
    },
    Tool {
        name: "bash",
        about: "Run a shell command: programs, pipes, tests, package tools. Each call has a shell of \
            its own, which starts in /workspace: folders and variables of the shell do not stay, \
            files do. When timeout is over the command and everything it started is ended. For a \
            server or anything long, set background: the answer is a job id for read_output and \
            stop. There is no terminal, so use options such as -y in place of prompts. \
            Example: {\"command\": \"cd app && python3 -m pytest -q\", \"timeout\": 300}",
        params: &[
            Param::text("command", "What bash runs (sh where there is no bash)."),
            Param::seconds(
                "timeout",
                60,
                "Seconds until it is ended; not for background.",
            ),
            Param::flag("background", false, "Answer at once and let it run."),
        ],
        effect: Effect::Runs,
        run: Run::Inside(|on, args| Box::pin(run::bash(on, args))),
    },
    Tool {
        name: "read_output",
        about: "Read what a job printed: the rest of an output that was shortened, or what a \
            background command has printed so far. The answer also says whether the job still \
            runs or how it ended, and the offset to read on at. Shows up to 30,000 bytes a call; \
            the latest 4 MiB are kept. \
            Example: {\"job\": \"job_1f0c\", \"stream\": \"stdout\", \"offset\": 20000}",
        params: &[
            JOB,
            Param::choice("stream", &["stdout", "stderr"], "Which of the two outputs.")
                .or("stdout"),
            Param::integer("offset", (0, i64::MAX), "The first byte to read.").or_integer(0),
        ],
        effect: Effect::Reads,
        run: Run::Inside(|on, args| Box::pin(run::read_output(on, args))),
    },
    Tool {
        name: "stop",
        about: "End a background job with everything it started. Use it for servers and commands \
            that are not needed any more, before you start them anew. Its output can still be \
            read with read_output. Example: {\"job\": \"job_1f0c\"}",
        params: &[JOB],
        effect: Effect::Changes,
        run: Run::Inside(|on, args| Box::pin(run::stop(on, args))),
    },
    Tool {
        name: "read_file",
        about: "Read a file: text with line numbers, an image (png, jpeg, gif, webp) as an image. \
            Use it before you edit a file. Long files are shown in parts: lines says which lines, \
            from the first to the last, -1 for the end. Other binary files are not shown: look at \
            them with python. Example: {\"path\": \"src/app.py\", \"lines\": [100, 180]}",
        params: &[
            Param::text("path", PATH),
            Param::lines("lines", "The first and the last line to show, from 1."),
        ],
        effect: Effect::Reads,
        run: Run::Inside(|on, args| Box::pin(files::read(on, args))),
    },
    Tool {
        name: "write_file",
        about: "Write a whole text file; folders above it are made, a file that is there is \
            replaced. Use it for new files and full rewrites, edit_file for changes, and python \
            for anything that is not text. \
            Example: {\"path\": \"src/app.py\", \"content\": \"print('hello')\\n\"}",
        params: &[
            Param::text("path", PATH),
            Param::text("content", "The whole text of the file."),
        ],
        effect: Effect::Changes,
        run: Run::Inside(|on, args| Box::pin(files::write(on, args))),
    },
    Tool {
        name: "edit_file",
        about: "Replace a text in a file by another and show the lines that changed. old must match \
            exactly, with spaces and line ends but without line numbers, and occur once, unless \
            all is true: take in lines around it until it is unique. \
            Example: {\"path\": \"src/app.py\", \"old\": \"debug = True\", \"new\": \"debug = False\"}",
        params: &[
            Param::text("path", PATH),
            Param::text("old", "The text to replace."),
            Param::text("new", "The text in its place; empty removes it."),
            Param::flag("all", false, "Whether to replace every occurrence."),
        ],
        effect: Effect::Changes,
        run: Run::Inside(|on, args| Box::pin(files::edit(on, args))),
    },
    Tool {
        name: "list_files",
        about: "List files with their sizes: those of a folder and of the folders in it, or those \
            whose paths match a pattern (* stays in a folder, ** crosses folders). Use it to look \
            around and to find files by name. Shows up to 500 entries; hidden files only where \
            the pattern names them. Example: {\"path\": \"src\", \"pattern\": \"**/*.py\"}",
        params: &[
            Param::text("path", PATH).or("."),
            Param::text("pattern", "Only paths below `path` that match.").optional(),
            Param::integer(
                "depth",
                (1, 64),
                "Levels of folders, where there is no pattern.",
            )
            .or_integer(2),
        ],
        effect: Effect::Reads,
        run: Run::Inside(|on, args| Box::pin(files::list(on, args))),
    },
    Tool {
        name: "search",
        about: "Search the text of files for a regular expression and show the lines with their \
            numbers. Use it to find where something is defined or used; what .gitignore names and \
            hidden files are left out. Shows up to 200 lines: narrow the search by path or glob. \
            Example: {\"pattern\": \"def \\\\w+_total\", \"glob\": \"**/*.py\", \"context\": 2}",
        params: &[
            Param::text("pattern", "A regular expression, without look-around."),
            Param::text(
                "path",
                "A folder or one file. Absolute, or relative to /workspace.",
            )
            .or("."),
            Param::text("glob", "Only files whose paths below `path` match.").optional(),
            Param::flag("ignore_case", false, "Whether a and A are the same."),
            Param::integer("context", (0, 20), "Lines to show around each match.").or_integer(0),
        ],
        effect: Effect::Reads,
        run: Run::Inside(|on, args| Box::pin(files::search(on, args))),
    },
];
