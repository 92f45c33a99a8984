//! The library stands alone: without the feature `soft` there is no software device in its graph, and a
//! binary that links it needs no library but libc.

mod common;

use std::path::Path;
use std::process::Command;

fn cargo() -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

#[test]
fn the_graph_without_features_holds_no_software_device() {
    let tree = cargo()
        .args(["tree", "--package", "uverbs", "--edges", "normal", "--no-default-features"])
        .args(["--prefix", "none", "--offline"])
        .output()
        .unwrap();
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).unwrap();
    let crates: Vec<_> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(crates.contains(&"uverbs-uapi") && crates.contains(&"uverbs-mlx5"), "{tree}");
    for beyond in ["uverbs-soft", "uverbs-mlx5-inspect"] {
        assert!(!crates.contains(&beyond), "{beyond} is in {tree}");
    }
    let builds_c = ["cc", "cmake", "bindgen", "pkg-config"];
    assert!(crates.iter().all(|name| !builds_c.contains(name)), "{tree}");
}

/// The software device and the queues have nothing in common but the formats.
#[test]
fn the_software_device_and_the_library_share_no_queue() {
    let crates = |package: &str| {
        let tree = cargo()
            .args(["tree", "--package", package, "--edges", "normal", "--all-features"])
            .args(["--prefix", "none", "--offline"])
            .output()
            .unwrap();
        assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
        String::from_utf8(tree.stdout).unwrap()
    };
    let names =
        |tree: &str, name: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
    let soft = crates("uverbs-soft");
    assert!(names(&soft, "uverbs-mlx5-format") && !names(&soft, "uverbs-mlx5"), "{soft}");
    let queues = crates("uverbs-mlx5");
    assert!(names(&queues, "uverbs-mlx5-format") && !names(&queues, "uverbs-uapi"), "{queues}");
}

/// What the loader has to find for this very test binary, which holds the whole library.
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
    // Without this the test above would look at a binary that the linker has emptied.
    assert!(common::open().attributes().unwrap().ports() >= 1);
}
