//! The contents of each sysfs directory of a device.
//!
//! Formats are those of core/sysfs.c, uverbs_main.c, mlx5_ib (`hca_type`, `board_id`) and, for the
//! PCI function, of drivers/pci/pci-sysfs.c.

use std::fmt::Write;

use uverbs_uapi::flags::PortCapFlags;

use super::Sysfs;
use super::locality::Locality;
use crate::chardev::device::options::{GidType, Model, Options};
use crate::core::Counters;
use crate::packet::Gid;

/// Device number of `/dev/infiniband/uverbs0`: major 231, first minor 192.
const MAJOR: u32 = 231;
const FIRST_MINOR: u32 = 192;

/// Mellanox Technologies.
const VENDOR: u32 = 0x15b3;
/// The host bridge of the devices. Its buses are the last ones of a PCI domain, where few machines
/// have a real device.
const BRIDGE: &str = "devices/pci0000:f7";
const FIRST_BUS: u32 = 0xf8;
const BUSES: u32 = 8;

/// Flags that only answers to QUERY_PORT have (`copy_port_attr_to_resp`).
const ABI_ONLY: PortCapFlags = PortCapFlags::IP_BASED_GIDS;

/// Address of device number `index` on the PCI bus, in the kernel's notation. The first eight
/// devices are function 0 of one bus each, like cards in separate slots; the next are function 1.
pub fn pci_address(index: u32) -> String {
    format!("0000:{:02x}:00.{}", FIRST_BUS + index % BUSES, index / BUSES)
}

/// The directory of the PCI function.
fn pci_function(options: &Options) -> String {
    format!("{BRIDGE}/{}", pci_address(options.index))
}

/// The directory of the RDMA device.
pub(super) fn infiniband_device(options: &Options) -> String {
    format!("{}/infiniband/{}", pci_function(options), options.name)
}

impl Sysfs {
    pub(crate) fn of(options: &Options) -> Self {
        let mut tree = Self::default();
        let address = pci_address(options.index);
        let function = pci_function(options);
        tree.add_function(&function, options);
        tree.add_bus_links(&function, &address);
        tree.add_device(&function, options);
        tree.add_character_device(&function, options);
        if options.is_roce() {
            tree.add_network_device(&function, options);
        }
        tree
    }

    /// The PCI function.
    fn add_function(&mut self, path: &str, options: &Options) {
        let (part, class) = (options.model.part_id(), class(options));
        let alias = format!(
            "pci:v{VENDOR:08X}d{part:08X}sv{VENDOR:08X}sd{:08X}bc02sc{:02x}i00",
            SUBSYSTEM,
            class >> 8 & 0xff
        );
        let locality = Locality::of_machine();
        let (speed, width) = pci_link(options.model);
        for (name, text) in [
            ("vendor", format!("0x{VENDOR:04x}")),
            ("device", format!("0x{part:04x}")),
            ("subsystem_vendor", format!("0x{VENDOR:04x}")),
            ("subsystem_device", format!("0x{SUBSYSTEM:04x}")),
            ("class", format!("0x{class:06x}")),
            ("revision", "0x00".into()),
            ("modalias", alias.clone()),
            ("enable", "1".into()),
            ("resource", no_resources()),
            ("uevent", uevent(options, &alias)),
            ("numa_node", locality.node),
            ("local_cpus", locality.mask),
            ("local_cpulist", locality.list),
            ("current_link_speed", speed.into()),
            ("max_link_speed", speed.into()),
            ("current_link_width", width.into()),
            ("max_link_width", width.into()),
        ] {
            self.add(&format!("{path}/{name}"), &text);
        }
    }

    fn add_bus_links(&mut self, function: &str, address: &str) {
        self.link(&format!("{function}/driver"), "bus/pci/drivers/mlx5_core");
        self.link(&format!("{function}/subsystem"), "bus/pci");
        self.link(&format!("bus/pci/devices/{address}"), function);
        self.link(&format!("bus/pci/drivers/mlx5_core/{address}"), function);
    }

    /// Links of a class device: from its class, to its parent, and to its class.
    fn add_class_links(&mut self, path: &str, function: &str, class: &str, name: &str) {
        self.link(&format!("class/{class}/{name}"), path);
        self.link(&format!("{path}/device"), function);
        self.link(&format!("{path}/subsystem"), &format!("class/{class}"));
    }

    fn add_character_device(&mut self, function: &str, options: &Options) {
        let name = format!("uverbs{}", options.index);
        let path = format!("{function}/infiniband_verbs/{name}");
        let number = format!("{MAJOR}:{}", FIRST_MINOR + options.index);
        self.add("class/infiniband_verbs/abi_version", "6");
        self.add_class_links(&path, function, "infiniband_verbs", &name);
        self.link(&format!("dev/char/{number}"), &path);
        self.add(&format!("{path}/ibdev"), &options.name);
        self.add(&format!("{path}/dev"), &number);
        self.add(&format!("{path}/abi_version"), "1");
    }

    /// The network device that RoCE GIDs belong to, without an entry in `class/net`: programs read
    /// the kernel's own directory there.
    fn add_network_device(&mut self, function: &str, options: &Options) {
        let path = format!("{function}/net/{}", options.netdev);
        self.link(&format!("{path}/device"), function);
        self.link(&format!("{path}/subsystem"), "class/net");
        self.add(&format!("{path}/ifindex"), &options.ifindex.to_string());
        self.add(&format!("{path}/address"), &mac(options.mac));
        self.add(&format!("{path}/dev_id"), "0x0");
        self.add(&format!("{path}/dev_port"), "0");
        self.add(&format!("{path}/type"), "1");
    }

    fn add_device(&mut self, function: &str, options: &Options) {
        let path = infiniband_device(options);
        self.add_class_links(&path, function, "infiniband", &options.name);
        let (major, minor, sub) = options.model.firmware();
        self.add(&format!("{path}/node_type"), "1: CA");
        self.add(&format!("{path}/fw_ver"), &format!("{major}.{minor}.{sub}"));
        self.add(&format!("{path}/board_id"), options.model.board_id());
        self.add(&format!("{path}/hca_type"), options.model.hca_type());
        self.add(&format!("{path}/hw_rev"), "0");
        self.add(&format!("{path}/node_guid"), &groups(&options.node_guid));
        self.add(&format!("{path}/sys_image_guid"), &groups(&options.node_guid));
        self.add(&format!("{path}/node_desc"), &options.name);
        self.add_port(&format!("{path}/ports/1"), options);
        self.set_hw_counters(options, &Counters::default());
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
                crate::chardev::abi::query::port_capabilities(options).bits() & !ABI_ONLY.bits()
            ),
        );
        for (index, pkey) in options.pkeys.iter().enumerate() {
            self.add(&format!("{path}/pkeys/{index}"), &format!("0x{pkey:04x}"));
        }
        for index in 0..Options::GID_TABLE {
            let entry = options.gids.get(index).copied();
            self.add(
                &format!("{path}/gids/{index}"),
                &groups(&entry.map_or(Gid([0; 16]), |entry| entry.gid).0),
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

/// Subsystem id of the board. Real values are unconfirmed; the programs tested only check that the
/// file exists.
const SUBSYSTEM: u32 = 0;

/// The variables of a function's events (`pci_uevent`, drivers/pci/pci-driver.c).
fn uevent(options: &Options, modalias: &str) -> String {
    let (part, class) = (options.model.part_id(), class(options));
    let slot = pci_address(options.index);
    format!(
        "DRIVER=mlx5_core\nPCI_CLASS={class:X}\nPCI_ID={VENDOR:04X}:{part:04X}\n\
         PCI_SUBSYS_ID={VENDOR:04X}:{SUBSYSTEM:04X}\nPCI_SLOT_NAME={slot}\nMODALIAS={modalias}"
    )
}

/// Six BARs, the ROM and six BARs for virtual functions, none of which can be mapped here: first
/// address, last address and flags are 0, as the kernel shows a BAR that a function does not have
/// (`resource_show`, drivers/pci/pci-sysfs.c).
fn no_resources() -> String {
    ["0x0000000000000000 0x0000000000000000 0x0000000000000000"; 13].join("\n")
}

/// PCI class code: network controller, for Ethernet or for InfiniBand.
fn class(options: &Options) -> u32 {
    if options.is_roce() { 0x02_0000 } else { 0x02_0700 }
}

/// Speed and width of the link to the host: PCI Express 3.0, 4.0 and 5.0 of 16 lanes.
fn pci_link(model: Model) -> (&'static str, &'static str) {
    let speed = match model {
        Model::ConnectX5 => "8.0 GT/s PCIe",
        Model::ConnectX6Dx => "16.0 GT/s PCIe",
        Model::ConnectX7 => "32.0 GT/s PCIe",
    };
    (speed, "16")
}

fn mac(bytes: [u8; 6]) -> String {
    bytes.map(|byte| format!("{byte:02x}")).join(":")
}

/// Groups of four digits: four of them for a GUID, eight for a GID.
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
