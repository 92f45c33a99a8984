//! Dependencies of the library: without the feature `soft` its dependency graph does not contain
//! the software device, and a binary with the library needs only the shared library libc.

mod common;

use std::path::Path;
use std::process::Command;

fn cargo() -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// Lines of `cargo tree`, one for each crate and its licence.
fn tree(arguments: &[&str]) -> Vec<(String, String)> {
    let output = cargo()
        .args(["tree", "--prefix", "none", "--no-dedupe", "--offline", "--format", "{p}|{l}"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let split = |line: &str| {
        let (package, licence) = line.split_once('|')?;
        let mut words = package.split(' ');
        let (name, version) = (words.next()?, words.next().unwrap_or_default());
        Some((format!("{name} {version}"), licence.to_owned()))
    };
    let mut crates: Vec<_> = text.lines().filter_map(split).collect();
    crates.sort();
    crates.dedup();
    crates
}

fn versions(crates: &[(String, String)], name: &str) -> usize {
    crates.iter().filter(|(package, _)| package.split(' ').next() == Some(name)).count()
}

/// The crates that a program compiles for the library without features.
#[test]
fn the_library_without_features_has_few_dependencies() {
    let lean = tree(&["-p", "uverbs", "--edges", "normal,build", "--no-default-features"]);
    for own in ["uverbs-uapi", "uverbs-mlx5", "uverbs-mlx5-format"] {
        assert_eq!(versions(&lean, own), 1, "{own} in {lean:#?}");
    }
    for other in ["uverbs-soft", "uverbs-mlx5-inspect", "cc", "cmake", "bindgen", "pkg-config"] {
        assert_eq!(versions(&lean, other), 0, "{other} in {lean:#?}");
    }
    assert_eq!(versions(&lean, "syn"), 1, "{lean:#?}");
    assert!(lean.len() <= 25, "{} crates: {lean:#?}", lean.len());
    let readme = include_str!("../README.md");
    let stated = format!("compiles to {} crates", lean.len());
    assert!(readme.contains(&stated), "README.md says another number than {}", lean.len());
}

/// Without features, streams add only their own crate to the library and `tracing`.
#[test]
fn streams_are_the_library_and_tracing() {
    let edges = ["-p", "uverbs-stream", "--edges", "normal,build"];
    let lean = tree(&[&edges[..], &["--no-default-features"]].concat());
    for other in ["uverbs-soft", "tokio", "hyper", "http"] {
        assert_eq!(versions(&lean, other), 0, "{other} in {lean:#?}");
    }
    let library = tree(&["-p", "uverbs", "--edges", "normal,build", "--no-default-features"]);
    assert_eq!(lean.len(), library.len() + 1, "{lean:#?}");
    let tasks = tree(&[&edges[..], &["--features", "tokio"]].concat());
    assert_eq!((versions(&tasks, "tokio"), versions(&tasks, "hyper")), (1, 0), "{tasks:#?}");
}

/// Every licence in the graph lets a program be distributed under MIT or Apache-2.0 alone.
#[test]
fn every_dependency_has_a_permissive_licence() {
    let crates = tree(&["--workspace", "--all-features"]);
    let free = ["MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "Zlib", "ISC", "CC0-1.0"];
    let allowed = |term: &str| {
        let all = term.trim_matches(['(', ')', ' ']).split(" AND ");
        all.map(|name| name.trim_matches(['(', ')', ' ']))
            .all(|name| free.contains(&name) || name == "Unicode-3.0")
    };
    // `A OR B AND C` permits a choice: one side of the outermost OR suffices.
    let permissive = |licence: &str| {
        let (choice, also) = match licence.split_once(") AND ") {
            Some((choice, also)) => (choice, Some(also)),
            None => (licence, None),
        };
        choice.replace('/', " OR ").split(" OR ").any(allowed) && also.is_none_or(allowed)
    };
    for (package, licence) in &crates {
        assert!(permissive(licence), "{package} is licensed under {licence:?}");
    }
    assert!(crates.len() > 50, "{crates:#?}");
}

/// The software device and the queues share no crate except the formats.
#[test]
fn the_software_device_and_the_library_share_no_queue() {
    let soft = tree(&["-p", "uverbs-soft", "--edges", "normal", "--all-features"]);
    assert_eq!((versions(&soft, "uverbs-mlx5-format"), versions(&soft, "uverbs-mlx5")), (1, 0));
    let queues = tree(&["-p", "uverbs-mlx5", "--edges", "normal", "--all-features"]);
    let seen = ["uverbs-mlx5-format", "uverbs-uapi", "libc", "nix"];
    assert_eq!(seen.map(|name| versions(&queues, name)), [1, 0, 0, 0], "{queues:#?}");
}

/// The shared libraries that this test binary needs; it contains the whole library.
#[test]
fn a_binary_needs_nothing_but_libc() {
    let binary = std::env::current_exe().unwrap();
    let needed = needed(&binary);
    let allowed =
        ["libc.so", "ld-linux", "libgcc_s.so", "libm.so", "libpthread.so", "libdl.so", "librt.so"];
    for library in &needed {
        assert!(allowed.iter().any(|prefix| library.starts_with(prefix)), "needs {library}");
    }
    assert!(needed.iter().any(|library| library.starts_with("libc.so")), "{needed:?}");
}

/// The DT_NEEDED entries of an ELF file of 64 bits in the machine's byte order.
fn needed(path: &Path) -> Vec<String> {
    let file = Elf(std::fs::read(path).unwrap());
    assert_eq!(file.0[..5], *b"\x7fELF\x02");
    let (dynamic, size) = file.segment(2).expect("a dynamic section");
    let entries = (dynamic..dynamic + size).step_by(16);
    let entries: Vec<_> = entries.map(|at| (file.u64(at), file.u64(at + 8))).collect();
    let strings = entries.iter().find(|(tag, _)| *tag == 5).expect("a string table").1;
    let strings = file.offset_of(strings);
    let names = entries.iter().filter(|(tag, _)| *tag == 1);
    names.map(|(_, name)| file.string(strings + *name as usize)).collect()
}

struct Elf(Vec<u8>);

impl Elf {
    fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.0[at..at + 2].try_into().unwrap())
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().unwrap())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.0[at..at + 8].try_into().unwrap())
    }

    fn headers(&self) -> impl Iterator<Item = usize> {
        let (start, size, count) = (self.u64(32) as usize, self.u16(54), self.u16(56));
        (0..usize::from(count)).map(move |i| start + i * usize::from(size))
    }

    /// File offset and size of the first segment of this type.
    fn segment(&self, kind: u32) -> Option<(usize, usize)> {
        let header = self.headers().find(|at| self.u32(*at) == kind)?;
        Some((self.u64(header + 8) as usize, self.u64(header + 32) as usize))
    }

    /// File offset of a virtual address.
    fn offset_of(&self, address: u64) -> usize {
        let loads = self.headers().filter(|at| self.u32(*at) == 1);
        let mut ranges = loads.map(|at| (self.u64(at + 16), self.u64(at + 8), self.u64(at + 32)));
        let (start, offset, _) =
            ranges.find(|(start, _, size)| (*start..start + size).contains(&address)).unwrap();
        (address - start + offset) as usize
    }

    fn string(&self, at: usize) -> String {
        let bytes = self.0[at..].iter().take_while(|byte| **byte != 0).copied().collect();
        String::from_utf8(bytes).unwrap()
    }
}

#[test]
fn the_library_is_in_this_binary() {
    // Without this call the linker would remove the library from the binary above.
    assert!(common::open().attributes().unwrap().ports() >= 1);
}

/// Packages, benchmarks, examples and tests in the documentation's `cargo` commands exist.
#[test]
fn cargo_commands_of_the_docs_name_existing_targets() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let metadata = cargo()
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .output()
        .unwrap();
    let metadata = String::from_utf8(metadata.stdout).unwrap();
    let mut pages: Vec<_> = ["README.md", "CONTRIBUTING.md"].map(|page| root.join(page)).into();
    pages.extend(std::fs::read_dir(root.join("docs")).unwrap().map(|page| page.unwrap().path()));
    pages.retain(|page| page.extension().is_some_and(|end| end == "md"));

    let mut count = 0;
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let words: Vec<_> = text.split(|c: char| c.is_whitespace() || c == '`').collect();
        for pair in words.windows(2) {
            let kind = match pair[0] {
                "--bench" => r#""kind":["bench"],"crate_types":["bin"],"#,
                "--example" => r#""kind":["example"],"crate_types":["bin"],"#,
                "--test" => r#""kind":["test"],"crate_types":["bin"],"#,
                "-p" if pair[1].starts_with("uverbs") => r#"{"#,
                _ => continue,
            };
            let named = format!("{kind}\"name\":\"{}\"", pair[1]);
            assert!(metadata.contains(&named), "{}: {} {}", page.display(), pair[0], pair[1]);
            count += 1;
        }
    }
    assert!(count > 20, "only {count} names found");
}
