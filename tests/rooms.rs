//! Checks that each room (top-level module) of the library uses only rooms below it, and that
//! ARCHITECTURE.md lists them.

#[path = "common/sources.rs"]
mod sources;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom to the top: a room uses itself, `error` and the rooms before it.
const ROOMS: &[&str] =
    &["host", "mlx5", "device", "devx", "memory", "cq", "srq", "qp", "flow", "ethernet", "cm"];

/// Files outside of the rooms. Rooms may use only `error`; the others re-export items of rooms.
const BESIDE: &[&str] = &["error.rs", "lib.rs", "raw.rs", "safe.rs", "tokio.rs"];

#[test]
fn uses_point_down_only() {
    let mut found = Vec::new();
    for (rank, room) in ROOMS.iter().enumerate() {
        for file in files(&source().join(room)) {
            let text = fs::read_to_string(&file).expect("UTF-8");
            let wrong = uses(&text).into_iter().filter(|(_, to)| !may_use(rank, to));
            let name = file.strip_prefix(source()).expect("below src").display().to_string();
            found.extend(wrong.map(|(line, to)| format!("{name}:{line}: uses {to}")));
        }
    }
    assert!(
        found.is_empty(),
        "{} uses point up or name none of the rooms\n{}",
        found.len(),
        found.join("\n")
    );
}

/// The files with `unsafe` code, except tests. The compiler denies it in all other files. README.md
/// has their number, and docs/safety.md explains what they may contain.
const UNSAFE: [(&str, &[&str]); 2] = [
    (
        "src",
        &[
            "cq/poll.rs",
            "ethernet/rings.rs",
            "host/buffer.rs",
            "host/system.rs",
            "memory/registration.rs",
            "memory/slot.rs",
            "mlx5/queues.rs",
            "qp/raw.rs",
            "qp/safe.rs",
            "srq/post.rs",
        ],
    ),
    (
        "provider-mlx5/src",
        &[
            "completion_queue/buffers.rs",
            "mapped.rs",
            "models.rs",
            "queue_state/pointers.rs",
            "recv_queue/post.rs",
            "send_queue/encode.rs",
            "send_queue/payload.rs",
            "send_queue/post.rs",
            "send_queue/ring.rs",
            "send_queue/steps/whole.rs",
            "send_queue/steps.rs",
            "send_queue/wide.rs",
        ],
    ),
];

#[test]
fn unsafe_code_is_in_few_files() {
    let text = |file: &Path| fs::read_to_string(file).expect("UTF-8");
    let counts = UNSAFE.map(|(folder, listed)| {
        let source = root().join(folder);
        assert!(text(&source.join("lib.rs")).contains("#![deny(unsafe_code)]"));
        let mut allowing = files(&source);
        allowing.retain(|file| text(file).contains("#![allow(unsafe_code"));
        let names = allowing.iter().map(|file| file.strip_prefix(&source).expect("below src"));
        assert_eq!(names.collect::<Vec<_>>(), listed.iter().map(Path::new).collect::<Vec<_>>());
        // Models are compiled for tests only.
        listed.iter().filter(|file| **file != "models.rs").count()
    });
    let readme = text(&root().join("README.md"));
    for claim in
        [format!("`unsafe` code in {} of its", counts[0]), format!("the queues, in {};", counts[1])]
    {
        assert!(readme.contains(&claim), "README.md says: {claim}");
    }
}

#[test]
fn every_file_has_its_row() {
    let of_src = |file: &PathBuf| file.strip_prefix(source()).expect("below src").to_owned();
    let first = |file: PathBuf| file.iter().next().expect("a name").to_owned();
    let here: BTreeSet<_> = files(&source()).iter().map(of_src).map(first).collect();
    let expected: BTreeSet<_> = ROOMS.iter().chain(BESIDE).map(OsString::from).collect();
    assert_eq!(here, expected);
}

#[test]
fn architecture_lists_the_rooms_in_order() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let listed: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `src/")?.split_once("/` |"))
        .map(|(room, _)| room)
        .collect();
    assert_eq!(listed, ROOMS, "rows `| `src/ROOM/` |`, from the bottom to the top");
}

#[test]
fn architecture_names_paths_that_exist() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let (_, places) = text.split_once("Where would I add").expect("the list of places");
    let more = fs::read_to_string(root().join("docs/adding.md")).expect("docs/adding.md");
    let named: Vec<_> = rows(&text).into_iter().chain(paths(places)).chain(paths(&more)).collect();
    assert!(named.len() > 40, "{named:?}");
    let exists = |path: &str| {
        let path = root().join(path);
        path.exists() || path.with_extension("rs").exists()
    };
    let missing: Vec<_> = named.iter().filter(|path| !exists(path)).collect();
    assert!(
        missing.is_empty(),
        "ARCHITECTURE.md or docs/adding.md name what does not exist: {missing:?}"
    );
}

#[test]
fn architecture_has_a_row_for_each_crate() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = "));
    let members = members.expect("`members = […]` in one line").split('"').skip(1).step_by(2);
    let rows = rows(&text);
    let has_row = |member: &str| {
        let member = format!("{member}/");
        let parent = |row: &str| row == "testing/" && member.starts_with(row);
        let source = format!("{member}src/");
        rows.iter().any(|row| *row == member || row.starts_with(&source) || parent(row))
    };
    let missing: Vec<_> = members.filter(|member| !has_row(member)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md has no row for {missing:?}");
}

/// The paths in the first column of the table of rooms.
fn rows(text: &str) -> Vec<String> {
    let first = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    first.flat_map(|cell| paths(&format!("`{cell}"))).collect()
}

/// The paths between backticks, those in braces one by one: `a/{b,c}.rs` is two.
fn paths(text: &str) -> Vec<String> {
    let quoted = text.split('`').skip(1).step_by(2).filter(|name| name.contains('/'));
    quoted.flat_map(expand).collect()
}

fn expand(path: &str) -> Vec<String> {
    let parts = path.split_once('{').and_then(|(start, rest)| Some((start, rest.split_once('}')?)));
    let Some((start, (names, end))) = parts else { return vec![path.to_owned()] };
    names.split(',').map(|name| format!("{start}{name}{end}")).collect()
}

#[test]
fn the_check_finds_what_it_is_for() {
    let to = |text: &str| uses(text).into_iter().map(|(_, to)| to).collect::<Vec<_>>();
    assert_eq!(to("use crate::qp::{self, State};\n"), ["qp"]);
    assert_eq!(to("// crate::qp is above\nlet a = crate::cq::new(); // crate::qp\n"), ["cq"]);
    assert_eq!(to("use crate::{\n    host,\n    qp::State,\n};\n"), ["host", "qp"]);
    assert_eq!(to("use super::super::qp;\n"), ["super::super"]);
    assert_eq!(to("mac! { $crate::host::wait() }\n"), ["host"]);
    assert_eq!(to("fn a() {}\n#[cfg(test)]\nmod tests {\n    use crate::qp;\n}\n"), [""; 0]);
    assert!(!may_use(0, "device") && may_use(2, "device") && may_use(2, "error"));
    assert!(!may_use(2, "Context"), "through the room, not through the root");
    assert_eq!(paths("in `a/{b,c}.rs` or `d`, `e/`"), ["a/b.rs", "a/c.rs", "e/"]);
    assert_eq!(rows("| `a/`, `b/` | holds `c/` |\n"), ["a/", "b/"]);
}

fn may_use(rank: usize, to: &str) -> bool {
    to == "error" || ROOMS.iter().position(|room| *room == to).is_some_and(|other| other <= rank)
}

/// Paths that begin with `crate::` or `super::super::`: the line and the first name. Comments and
/// the tests at the end of a file are skipped.
fn uses(text: &str) -> Vec<(usize, String)> {
    let mut code = String::new();
    let mut is_test = false;
    for line in text.lines() {
        is_test |= line.starts_with("#[cfg(") && line.contains("test") || line == "mod tests;";
        if !is_test {
            code.push_str(line.split("//").next().unwrap_or_default());
        }
        is_test &= line != "}" && (line.starts_with(' ') || !line.ends_with(';'));
        code.push('\n');
    }
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let line = code[..at].lines().count().max(1);
        let rest = &code[at + "crate::".len()..];
        let names = match rest.strip_prefix('{') {
            Some(group) => group_heads(group),
            None => vec![word(rest)],
        };
        found.extend(names.into_iter().map(|name| (line, name)));
    }
    for (at, path) in code.match_indices("super::super") {
        found.push((code[..at].lines().count().max(1), path.to_owned()));
    }
    found
}

/// The first names of the entries of a group in braces.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut heads, mut entry) = (0, Vec::new(), String::new());
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(std::mem::take(&mut entry)),
            _ => entry.push(c),
        }
    }
    heads.push(entry);
    heads.iter().map(|entry| word(entry.trim_start())).filter(|head| !head.is_empty()).collect()
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn source() -> PathBuf {
    root().join("src")
}

/// The source files below a folder, except files of tests.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = sources::files(folder, &["rs"]);
    found.retain(|path| !path.ends_with("tests.rs"));
    found
}
