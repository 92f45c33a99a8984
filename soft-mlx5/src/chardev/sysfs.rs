//! What sysfs shows of a device: the files below `class/infiniband` and `class/infiniband_verbs` that libibverbs,
//! `ibv_devinfo` and our own discovery read, as a tree in memory that can be written to a directory.
//!
//! Formats are those of core/sysfs.c, uverbs_main.c and mlx5_ib (`hca_type`, `board_id`).
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use uverbs_uapi::flags::PortCapFlags;

use super::options::{GidType, Options};
use crate::packet::Gid;

/// Files by path relative to `/sys`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sysfs {
    files: BTreeMap<String, String>,
}

/// Device number of `/dev/infiniband/uverbs0`: major 231, first minor 192.
pub(crate) const MAJOR: u32 = 231;
const FIRST_MINOR: u32 = 192;

/// What only answers to QUERY_PORT say (`copy_port_attr_to_resp`).
const ABI_ONLY: PortCapFlags = PortCapFlags::IP_BASED_GIDS;

impl Sysfs {
    pub(crate) fn of(options: &Options) -> Self {
        let mut tree = Self::default();
        tree.add("class/infiniband_verbs/abi_version", "6");
        tree.add_character_device(
            &format!("class/infiniband_verbs/uverbs{}", options.index),
            options,
        );
        let device = format!("class/infiniband/{}", options.name);
        tree.add_device(&device, options);
        tree.add_port(&format!("{device}/ports/1"), options);
        tree
    }

    /// A file's contents, with the newline at its end.
    pub fn read(&self, path: &str) -> Option<&str> {
        self.files.get(path.trim_matches('/')).map(String::as_str)
    }

    /// Names in a directory, sorted; empty if there is no such directory.
    pub fn list(&self, directory: &str) -> Vec<&str> {
        let prefix = format!("{}/", directory.trim_matches('/'));
        let below = self.files.keys().filter_map(|path| path.strip_prefix(&prefix));
        let names: BTreeSet<_> = below.filter_map(|rest| rest.split('/').next()).collect();
        names.into_iter().collect()
    }

    /// All files: path relative to `/sys`, contents.
    pub fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, contents)| (path.as_str(), contents.as_str()))
    }

    /// Adds another device's files.
    pub fn merge(&mut self, other: &Self) {
        self.files
            .extend(other.files.iter().map(|(path, contents)| (path.clone(), contents.clone())));
    }

    /// Writes the tree below `root`, which then serves as `SYSFS_PATH`.
    ///
    /// # Errors
    /// Whatever creating directories and files brings.
    pub fn write_to(&self, root: &Path) -> std::io::Result<()> {
        for (path, contents) in &self.files {
            let file = root.join(path);
            if let Some(directory) = file.parent() {
                std::fs::create_dir_all(directory)?;
            }
            std::fs::write(file, contents)?;
        }
        Ok(())
    }

    fn add(&mut self, path: &str, contents: &str) {
        self.files.insert(path.to_owned(), format!("{contents}\n"));
    }

    fn add_character_device(&mut self, path: &str, options: &Options) {
        self.add(&format!("{path}/ibdev"), &options.name);
        self.add(&format!("{path}/dev"), &format!("{MAJOR}:{}", FIRST_MINOR + options.index));
        self.add(&format!("{path}/abi_version"), "1");
    }

    fn add_device(&mut self, path: &str, options: &Options) {
        let (major, minor, sub) = options.model.firmware();
        self.add(&format!("{path}/node_type"), "1: CA");
        self.add(&format!("{path}/fw_ver"), &format!("{major}.{minor}.{sub}"));
        self.add(&format!("{path}/board_id"), options.model.board_id());
        self.add(&format!("{path}/hca_type"), options.model.hca_type());
        self.add(&format!("{path}/hw_rev"), "0");
        self.add(&format!("{path}/node_guid"), &guid(options.node_guid));
        self.add(&format!("{path}/sys_image_guid"), &guid(options.node_guid));
        self.add(&format!("{path}/node_desc"), &options.name);
        self.add(&format!("{path}/device/vendor"), "0x15b3");
        self.add(&format!("{path}/device/device"), &format!("0x{:04x}", options.model.part_id()));
        self.add(&format!("{path}/device/numa_node"), "-1");
        let part = options.model.part_id();
        let alias = format!("pci:v000015B3d{part:08X}sv000015B3sd00000000bc02sc00i00");
        self.add(&format!("{path}/device/modalias"), &alias);
        let uverbs = format!("{path}/device/infiniband_verbs/uverbs{}", options.index);
        self.add_character_device(&uverbs, options);
        if options.is_roce() {
            self.add(
                &format!("{path}/device/net/{}/ifindex", options.netdev),
                &options.ifindex.to_string(),
            );
        }
    }

    fn add_port(&mut self, path: &str, options: &Options) {
        let layer = if options.is_roce() { "Ethernet" } else { "InfiniBand" };
        self.add(&format!("{path}/link_layer"), layer);
        self.add(&format!("{path}/state"), "4: ACTIVE");
        self.add(&format!("{path}/phys_state"), "5: LinkUp");
        self.add(&format!("{path}/rate"), options.model.rate());
        self.add(&format!("{path}/lid"), &format!("{:#x}", options.lid));
        self.add(&format!("{path}/lid_mask_count"), "0");
        self.add(&format!("{path}/sm_lid"), &format!("{:#x}", options.sm_lid));
        self.add(&format!("{path}/sm_sl"), "0");
        self.add(
            &format!("{path}/cap_mask"),
            &format!(
                "0x{:08x}",
                super::query::port_capabilities(options).bits() & !ABI_ONLY.bits()
            ),
        );
        for (index, pkey) in options.pkeys.iter().enumerate() {
            self.add(&format!("{path}/pkeys/{index}"), &format!("0x{pkey:04x}"));
        }
        for index in 0..Options::GID_TABLE {
            let entry = options.gids.get(index).copied();
            self.add(
                &format!("{path}/gids/{index}"),
                &gid(entry.map_or(Gid([0; 16]), |entry| entry.gid)),
            );
        }
        for (index, entry) in
            options.gids.iter().enumerate().filter(|(_, entry)| !entry.gid.is_zero())
        {
            let kind = if entry.kind == GidType::RoceV2 { "RoCE v2" } else { "IB/RoCE v1" };
            self.add(&format!("{path}/gid_attrs/types/{index}"), kind);
            if options.is_roce() {
                self.add(&format!("{path}/gid_attrs/ndevs/{index}"), &options.netdev);
            }
        }
    }
}

/// Four groups of four digits.
fn guid(bytes: [u8; 8]) -> String {
    groups(&bytes)
}

/// Eight groups of four digits.
fn gid(gid: Gid) -> String {
    groups(&gid.0)
}

fn groups(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, byte) in bytes.iter().enumerate() {
        if index > 0 && index % 2 == 0 {
            text.push(':');
        }
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::options::GidEntry;
    use super::*;

    #[test]
    fn files_that_discovery_reads() {
        let address = Gid::from_ipv4([127, 0, 0, 2].into());
        let gids = vec![GidEntry { gid: address, kind: GidType::RoceV2 }];
        let tree = Sysfs::of(&Options { gids, ..Options::default() });
        assert_eq!(tree.read("class/infiniband_verbs/uverbs0/ibdev"), Some("soft0\n"));
        assert_eq!(tree.read("/class/infiniband_verbs/uverbs0/dev"), Some("231:192\n"));
        assert_eq!(tree.read("class/infiniband/soft0/node_type"), Some("1: CA\n"));
        let first = "class/infiniband/soft0/ports/1/gids/0";
        assert_eq!(tree.read(first), Some("0000:0000:0000:0000:0000:ffff:7f00:0002\n"));
        assert_eq!(
            tree.read("class/infiniband/soft0/ports/1/gid_attrs/types/0"),
            Some("RoCE v2\n")
        );
        assert_eq!(tree.list("class"), ["infiniband", "infiniband_verbs"]);
        assert_eq!(tree.list("class/infiniband/soft0/ports"), ["1"]);
    }
}
