//! `POST /files/grep`.

use super::Cancel;
use super::beneath::Root;
use super::glob::{self, Pattern};
use super::read::open_regular;
use super::tree::{Options, Tree, cancelled};
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, MmapChoice, Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch,
};
use ringfence_proto::{Failure, FileKind, GrepFile, GrepLine, GrepMode, GrepRequest, GrepResult};
use rustix::fs::{FileType, OFlags};
use std::fs::File;
use std::io;

const DEFAULT_LIMIT: u32 = 1_000;
const LIMIT: u32 = 100_000;
const CONTEXT_LIMIT: u32 = 1_000;
const LINE_LIMIT: usize = 2_000;
/// A search holds no more of a file than this; a file with a longer line is left out.
const HEAP_LIMIT: usize = 16 << 20;
/// Most bytes of text in one answer, whatever its lines.
const TEXT_LIMIT: usize = 32 << 20;
const PATTERN_LIMIT: usize = 64 << 10;

pub(crate) fn grep(
    root: &Root,
    request: &GrepRequest,
    cancel: &Cancel,
) -> Result<GrepResult, Failure> {
    let mut search = Search::new(request, cancel)?;
    let path = root.path(&request.path)?;
    let only = request.glob.as_deref().map(Pattern::new).transpose()?;
    // A link to a file or folder that is named itself is followed, as long as it stays inside.
    let entry = super::list::stat(root, &path)?;
    let folder = match entry.kind {
        FileKind::Folder => true,
        FileKind::Symlink => root.enter(&path).is_ok(),
        _ => false,
    };
    if !folder {
        let file = open_regular(root, "search", &path)?;
        search.file(path.shown(), file)?;
        return Ok(search.result());
    }
    let options = Options {
        hidden: request.hidden,
        gitignore: request.gitignore,
        ..Options::default()
    };
    let mut tree = Tree::new(root, "search", &path, options)?;
    while let Some(node) = tree.next(cancel)? {
        if node.kind() != FileType::RegularFile
            || only.as_ref().is_some_and(|only| !only.matches(&node.path))
        {
            continue;
        }
        if search.full() {
            search.truncated = true;
            break;
        }
        match tree.open(&node, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY) {
            Ok(fd) => {
                let file = File::from(fd);
                // It may have become a fifo or a device since it was listed.
                if file.metadata().is_ok_and(|m| m.is_file()) {
                    search.file(tree.shown(&node), file)?;
                }
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::LOOP) => {}
            Err(_) => search.truncated = true,
        }
    }
    search.truncated |= tree.truncated;
    Ok(search.result())
}

struct Search<'a> {
    matcher: RegexMatcher,
    searcher: Searcher,
    mode: GrepMode,
    cancel: &'a Cancel,
    /// Lines, or files, that the answer still takes.
    left: usize,
    /// Bytes of text that the answer still takes.
    text: usize,
    files: Vec<GrepFile>,
    truncated: bool,
}

impl<'a> Search<'a> {
    fn new(request: &GrepRequest, cancel: &'a Cancel) -> Result<Self, Failure> {
        let left = glob::limit(request.limit, DEFAULT_LIMIT, LIMIT)?;
        if request.context > CONTEXT_LIMIT {
            let message = format!(
                "context {} is out of range: 0 to {CONTEXT_LIMIT}",
                request.context
            );
            return Err(Failure::invalid(message));
        }
        if request.pattern.len() > PATTERN_LIMIT {
            let message = format!("the pattern is over {PATTERN_LIMIT} bytes");
            return Err(Failure::invalid(message));
        }
        let matcher = RegexMatcherBuilder::new()
            .case_insensitive(request.ignore_case)
            .fixed_strings(request.fixed)
            .line_terminator(Some(b'\n'))
            .build(&request.pattern)
            .map_err(|e| Failure::invalid(format!("bad pattern: {e}")))?;
        let context = match request.mode {
            GrepMode::Content => request.context as usize,
            _ => 0,
        };
        let searcher = SearcherBuilder::new()
            .line_number(true)
            .before_context(context)
            .after_context(context)
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(HEAP_LIMIT))
            // A mapped file that is cut short meanwhile would kill the guest.
            .memory_map(MmapChoice::never())
            .build();
        let text = TEXT_LIMIT;
        let (files, truncated) = (Vec::new(), false);
        Ok(Self {
            matcher,
            searcher,
            mode: request.mode,
            cancel,
            left,
            text,
            files,
            truncated,
        })
    }

    fn full(&self) -> bool {
        self.left == 0 || self.text == 0
    }

    fn file(&mut self, path: String, file: File) -> Result<(), Failure> {
        let mut found = Matches {
            mode: self.mode,
            cancel: self.cancel,
            left: self.left,
            text: self.text,
            count: 0,
            lines: Vec::new(),
            binary: false,
            cut: false,
        };
        let searched = self.searcher.search_reader(&self.matcher, file, &mut found);
        self.cancel.check()?;
        if searched.is_err() {
            // Unreadable, or a line longer than the heap: said, and the rest is searched.
            self.truncated = true;
            return Ok(());
        }
        if found.binary || found.count == 0 {
            return Ok(());
        }
        self.truncated |= found.cut;
        self.text = found.text;
        self.left = match self.mode {
            GrepMode::Content => found.left,
            GrepMode::Files | GrepMode::Count => self.left - 1,
        };
        self.files.push(GrepFile {
            path,
            count: found.count,
            lines: found.lines,
        });
        Ok(())
    }

    fn result(mut self) -> GrepResult {
        self.files.sort_by(|a, b| a.path.cmp(&b.path));
        GrepResult {
            files: self.files,
            truncated: self.truncated,
        }
    }
}

/// What was found in one file.
struct Matches<'a> {
    mode: GrepMode,
    cancel: &'a Cancel,
    left: usize,
    text: usize,
    count: u64,
    lines: Vec<GrepLine>,
    binary: bool,
    /// There was more than the answer takes.
    cut: bool,
}

impl Matches<'_> {
    fn line(&mut self, number: Option<u64>, bytes: &[u8], matched: bool) -> io::Result<bool> {
        self.cancel
            .check()
            .map_err(|_| io::Error::other(cancelled()))?;
        if self.mode == GrepMode::Content && (self.left == 0 || self.text == 0) {
            self.cut = true;
            return Ok(false);
        }
        if matched {
            self.count += 1;
        }
        if self.mode == GrepMode::Content {
            let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
            let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
            let text = cut(&String::from_utf8_lossy(
                &bytes[..bytes.len().min(LINE_LIMIT)],
            ));
            self.left -= 1;
            self.text = self.text.saturating_sub(text.len());
            self.lines.push(GrepLine {
                number: number.unwrap_or(0),
                text,
                matched,
            });
        }
        // One match is all that the name of a file needs.
        Ok(self.mode != GrepMode::Files)
    }
}

/// A character cut in two was replaced by a longer one.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(LINE_LIMIT)].to_owned()
}

impl Sink for Matches<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, line: &SinkMatch<'_>) -> io::Result<bool> {
        self.line(line.line_number(), line.bytes(), true)
    }

    fn context(&mut self, _: &Searcher, line: &SinkContext<'_>) -> io::Result<bool> {
        self.line(line.line_number(), line.bytes(), false)
    }

    fn binary_data(&mut self, _: &Searcher, _: u64) -> io::Result<bool> {
        self.binary = true;
        Ok(false)
    }
}
