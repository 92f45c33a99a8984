//! Comment width and plain English, in the folders that are already clean.
//!
//! Comments and Markdown prose have at most [`WIDTH`] characters a line. Comments, prose and string
//! literals do not use the phrases of [`PHRASES`], and no item is named with a word of [`NAMES`].
//! Code between backticks, fenced code and tables are exempt.

#[path = "common/sources.rs"]
mod sources;

use std::fs;
use std::path::Path;

/// Folders and files that are checked. A folder joins this list when it is clean.
const CLEAN: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "benches",
    "capi",
    "cli",
    "docs/adding.md",
    "docs/c-programs.md",
    "docs/drop-in.md",
    "docs/faults.md",
    "docs/from-libibverbs.md",
    "docs/fuzzing.md",
    "docs/glossary.md",
    "docs/kernel.md",
    "docs/network.md",
    "docs/ordering.md",
    "docs/safety.md",
    "docs/semantics.md",
    "docs/software-device.md",
    "docs/start-up.md",
    "docs/streams.md",
    "docs/trading.md",
    "docs/vs-libmlx5.md",
    "examples",
    "preload",
    "provider-mlx5",
    "soft-mlx5",
    "src",
    "stream",
    "testing",
    "tests",
    "uapi",
    "xtask",
];

/// Longest comment line, in characters.
const WIDTH: usize = 100;

/// Phrases with a plain counterpart; `*` is one word of any kind.
const PHRASES: &[(&str, &str)] = &[
    ("nobody", "name what is absent: no QP, no thread"),
    ("somebody", "name it: another thread, a program"),
    ("whoever", "name it: the caller, the holder"),
    ("who polls", "the poller"),
    ("who posts", "the poster"),
    ("who waits", "the waiter"),
    ("who sleeps", "a sleeping thread"),
    ("who asks", "the caller"),
    ("who looks", "the reader"),
    ("piece", "SGE, buffer, segment"),
    ("pieces", "SGEs, buffers, segments"),
    ("without a thought", "on the fast path"),
    ("wish", "options"),
    ("wishes", "options"),
    ("attend to", "refill"),
    ("seldom", "rarely, cold"),
    ("by turns", "alternating"),
    ("its place away", "times out"),
    ("lends * time", "makes progress in the calling thread"),
    ("lends the device * time", "makes progress in the calling thread"),
    ("ends to", "no longer"),
    ("grave", "deferred release"),
    ("bury", "defer the release of"),
    ("expel", "unregister"),
    ("room for", "space for"),
    ("no room", "no space"),
    ("stands in", "is in"),
    ("stands at", "is at"),
    ("stands before", "is before"),
    ("stands behind", "follows"),
    ("stands between", "is between"),
    ("lies in", "is in"),
    ("lies at", "is at"),
    ("lies behind", "follows"),
    ("lies between", "is between"),
    ("lies inside", "is inside"),
];

/// Comparatives, before which `no` is plain, as in "no longer".
const COMPARISONS: &[&str] =
    &["longer", "more", "less", "larger", "smaller", "shorter", "better", "worse", "faster"];

/// Words that names of items must not contain.
const NAMES: &[&str] = &[
    "nobody", "somebody", "piece", "pieces", "wish", "wishes", "attend", "settle", "seldom",
    "grave", "bury", "gate", "admit", "expel", "behind", "ahead", "room",
];

/// The keywords that define an item and are followed by its name.
const DEFINES: &[&str] = &["fn", "struct", "enum", "trait", "mod", "const", "static", "type"];

#[test]
fn clean_folders_stay_in_plain_english() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let below = |path| sources::files(&root.join(path), &["rs", "md"]);
    let files: Vec<_> = CLEAN.iter().flat_map(below).collect();
    assert!(files.len() > 10, "only {} files found: {CLEAN:?}", files.len());

    let mut findings = Vec::new();
    for path in files {
        let text = fs::read_to_string(&path).expect("UTF-8");
        let name = path.strip_prefix(root).expect("below the root").display();
        let own = path.ends_with("tests/style.rs");
        let found = if path.extension().is_some_and(|end| end == "md") {
            check_markdown(&text)
        } else {
            check_rust(&text, own)
        };
        findings.extend(found.into_iter().map(|(line, what)| format!("{name}:{line}: {what}")));
    }
    assert!(findings.is_empty(), "{} findings\n{}", findings.len(), findings.join("\n"));
}

#[test]
fn the_check_finds_what_it_is_for() {
    let long = format!("// {}\n", "x".repeat(WIDTH));
    let found = |text: &str| check_rust(text, false).len();
    assert_eq!(found(&long), 1);
    assert_eq!(found("// Some text of a\n// piece of memory.\n"), 1);
    assert_eq!(
        found("// The peer, who\n// polls, is there.\n"),
        1,
        "phrases go on in the next line"
    );
    assert_eq!(found("// There is no\n\nlet a = 1; // room\n"), 0, "but not past other lines");
    assert_eq!(found("fail(\"nobody listens\");\n"), 1);
    assert_eq!(found("// Zero is\n// no port. This is no longer so, and there is no port.\n"), 1);
    assert_eq!(found("let quote = '\"'; // nobody's\n"), 1);
    assert_eq!(found("let a = r#\"a \"piece\" of it\"#;\n"), 1);
    assert_eq!(found("// `Piece` is theirs.\nlet a = other::Piece::new();\n"), 0);
    assert_eq!(found("pub(crate) struct FreePiece;\nfn bury_it() {}\n"), 2);
    assert_eq!(found("fn life<'a>(a: &'a str) {} // fine\n"), 0);
    let markdown = "nobody\n\n```sh\nnobody\n```\n| nobody reads a long table |\n";
    assert_eq!(check_markdown(markdown).len(), 2, "in prose and in a table, not in code");
}

type Finding = (usize, String);

fn check_markdown(text: &str) -> Vec<Finding> {
    let (mut findings, mut is_code, mut prose) = (Vec::new(), false, Vec::new());
    for (line, text) in (1..).zip(text.lines()) {
        let is_fence = text.trim_start().starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence {
            continue;
        }
        let is_table = text.trim_start().starts_with('|');
        if !is_table && text.chars().count() > WIDTH && text.trim().contains(' ') {
            findings.push((line, format!("more than {WIDTH} characters")));
        }
        prose.push((line, text.to_owned()));
    }
    findings.extend(phrases(&prose));
    findings
}

/// `own`: the file lists the phrases itself, in string literals.
fn check_rust(text: &str, own: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut parts = Parts::default();
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim_start().starts_with("//") && text.chars().count() > WIDTH {
            findings.push((line, format!("a comment of more than {WIDTH} characters")));
        }
        parts.line(line, text);
    }
    findings.extend(phrases(&parts.comments));
    if !own {
        findings.extend(phrases(&parts.strings));
    }
    findings.extend(names(&parts.code));
    findings
}

/// The text of a Rust file by kind, with line numbers.
#[derive(Default)]
struct Parts {
    comments: Vec<(usize, String)>,
    strings: Vec<(usize, String)>,
    code: Vec<(usize, String)>,
    /// The end of the current string literal, if inside one.
    ends_with: Option<String>,
}

impl Parts {
    fn line(&mut self, line: usize, text: &str) {
        let (mut rest, mut code) = (text, String::new());
        loop {
            if let Some(end) = self.ends_with.take() {
                let (literal, after) = split_literal(rest, &end);
                self.strings.push((line, literal.to_owned()));
                let Some(after) = after else {
                    self.ends_with = Some(end);
                    break;
                };
                rest = after;
            }
            let Some(first) = rest.chars().next() else { break };
            if let Some(comment) = rest.strip_prefix("//") {
                self.comments.push((line, comment.trim_start_matches(['/', '!']).to_owned()));
                break;
            }
            if let Some((length, end)) = literal_start(rest, &code) {
                self.ends_with = Some(end);
                rest = &rest[length..];
                continue;
            }
            let length = character_literal(rest).unwrap_or(first.len_utf8());
            code.push_str(&rest[..length]);
            rest = &rest[length..];
        }
        self.code.push((line, code));
    }
}

/// For a string literal that starts here: the number of bytes before its contents, and its end.
fn literal_start(text: &str, before: &str) -> Option<(usize, String)> {
    let in_word = before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    if let Some(raw) = text.strip_prefix('r').filter(|_| !in_word || before.ends_with('b')) {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let is_literal = raw[hashes..].starts_with('"');
        return is_literal.then(|| (hashes + 2, format!("\"{}", "#".repeat(hashes))));
    }
    text.starts_with('"').then(|| (1, "\\".to_owned()))
}

/// The contents of a literal on this line, and the rest of the line if it ends here. The end `\`
/// means an ordinary literal, which ends at the first unescaped quotation mark.
fn split_literal<'t>(text: &'t str, end: &str) -> (&'t str, Option<&'t str>) {
    if end != "\\" {
        return match text.split_once(end) {
            Some((literal, after)) => (literal, Some(after)),
            None => (text, None),
        };
    }
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return (&text[..at], Some(&text[at + 1..])),
            _ => escaped = c == '\\' && !escaped,
        }
    }
    (text, None)
}

/// The length of a character literal that starts here; `None` for a lifetime.
fn character_literal(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('\'')?;
    let start = usize::from(inner.starts_with('\\'));
    let first = inner[start..].chars().next()?;
    let end = start + first.len_utf8();
    inner[end..].starts_with('\'').then_some(end + 2)
}

/// Finds phrases in lines of prose. A phrase may continue on the next line, if that is also prose.
fn phrases(lines: &[(usize, String)]) -> Vec<Finding> {
    let mut words: Vec<(usize, String)> = Vec::new();
    for (line, text) in lines {
        if words.last().is_some_and(|(last, _)| last + 1 < *line) {
            words.push((*line, ".".to_owned()));
        }
        words.extend(words_of(text).map(|word| (*line, word)));
    }
    let mut findings = Vec::new();
    for at in 0..words.len() {
        if negates_a_noun(&words, at) {
            findings.push((words[at].0, "`is no`: write is not a".to_owned()));
        }
        let found = PHRASES.iter().find(|(phrase, _)| starts_with(&words[at..], phrase));
        if let Some((phrase, instead)) = found {
            findings.push((words[at].0, format!("`{phrase}`: write {instead}")));
        }
    }
    findings
}

/// Whether a noun is negated by `no` after a verb, as in `zero is no port`. After "there" this is
/// plain.
fn negates_a_noun(words: &[(usize, String)], at: usize) -> bool {
    let word = |at: usize| words.get(at).map_or(".", |(_, word)| word.as_str());
    ["is", "are", "was", "were"].contains(&word(at))
        && word(at + 1) == "no"
        && !COMPARISONS.contains(&word(at + 2))
        && !["there", "here", "."].contains(&word(at.wrapping_sub(1)))
}

fn starts_with(words: &[(usize, String)], phrase: &str) -> bool {
    let mut words = words.iter();
    phrase.split(' ').all(|part| {
        words.next().is_some_and(|(_, word)| word == part || (part == "*" && word != "."))
    })
}

/// Words in lower case; `.` ends a sentence. Code between backticks is left out.
fn words_of(text: &str) -> impl Iterator<Item = String> {
    let prose: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" . ");
    let marked = prose.to_lowercase().replace(['.', ',', ';', ':', '|'], " . ");
    let words: Vec<String> = marked
        .split(|c: char| !c.is_alphanumeric() && c != '.')
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect();
    words.into_iter()
}

/// Definitions whose name contains a word of [`NAMES`].
fn names(code: &[(usize, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, code) in code {
        let words: Vec<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        for pair in words.windows(2).filter(|pair| DEFINES.contains(&pair[0])) {
            let parts = split_name(pair[1]);
            if let Some(word) = NAMES.iter().find(|word| parts.iter().any(|part| part == *word)) {
                findings.push((*line, format!("`{}`: no name with `{word}`", pair[1])));
            }
        }
    }
    findings
}

/// The words of an identifier in any case style, in lower case.
fn split_name(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_lowercase();
        if c != '_' {
            words.last_mut().expect("one").extend(c.to_lowercase());
        }
    }
    words
}
