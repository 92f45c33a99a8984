//! Answers RDMA netlink requests like the kernel's RDMA core (drivers/infiniband/core/nldev.c,
//! netlink.c).
//!
//! Supported are requests about devices, ports, character devices, the subsystem and the number of
//! objects, and for lists of objects that are empty. Other requests fail with EOPNOTSUPP. Names and
//! states are those of the software device's sysfs tree.

use nix::errno::Errno;
use uverbs_soft::chardev::Sysfs;

use super::message::{
    Attributes, NLM_F_ACK, NLM_F_DUMP, NLM_F_MULTI, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
    Request, message,
};
use crate::device::{self, Devices};
use crate::paths::NodeKind;

/// `RDMA_NL_NLDEV`, in the upper bits of a message's type.
const NLDEV: u16 = 5 << 10;

/// `enum rdma_nldev_command` of rdma/rdma_netlink.h.
mod command {
    pub(super) const GET: u16 = 1;
    pub(super) const PORT_GET: u16 = 5;
    pub(super) const SYS_GET: u16 = 6;
    pub(super) const RES_GET: u16 = 9;
    pub(super) const RES_QP_GET: u16 = 10;
    pub(super) const RES_CQ_GET: u16 = 12;
    pub(super) const RES_MR_GET: u16 = 13;
    pub(super) const RES_PD_GET: u16 = 14;
    pub(super) const GET_CHARDEV: u16 = 15;
    pub(super) const RES_SRQ_GET: u16 = 23;
}

/// `enum rdma_nldev_attr` of rdma/rdma_netlink.h.
mod attribute {
    pub(super) const DEV_INDEX: u16 = 1;
    pub(super) const DEV_NAME: u16 = 2;
    pub(super) const PORT_INDEX: u16 = 3;
    pub(super) const CAP_FLAGS: u16 = 4;
    pub(super) const FW_VERSION: u16 = 5;
    pub(super) const NODE_GUID: u16 = 6;
    pub(super) const SYS_IMAGE_GUID: u16 = 7;
    pub(super) const SUBNET_PREFIX: u16 = 8;
    pub(super) const LID: u16 = 9;
    pub(super) const SM_LID: u16 = 10;
    pub(super) const LMC: u16 = 11;
    pub(super) const PORT_STATE: u16 = 12;
    pub(super) const PORT_PHYS_STATE: u16 = 13;
    pub(super) const DEV_NODE_TYPE: u16 = 14;
    pub(super) const RES_SUMMARY: u16 = 15;
    pub(super) const RES_SUMMARY_ENTRY: u16 = 16;
    pub(super) const RES_SUMMARY_ENTRY_NAME: u16 = 17;
    pub(super) const RES_SUMMARY_ENTRY_CURR: u16 = 18;
    pub(super) const NDEV_INDEX: u16 = 50;
    pub(super) const NDEV_NAME: u16 = 51;
    pub(super) const NETNS_MODE: u16 = 66;
    pub(super) const DEV_PROTOCOL: u16 = 67;
    pub(super) const CHARDEV_TYPE: u16 = 69;
    pub(super) const CHARDEV_NAME: u16 = 70;
    pub(super) const CHARDEV_ABI: u16 = 71;
    pub(super) const CHARDEV: u16 = 72;
    pub(super) const DRIVER_ID: u16 = 73;
    pub(super) const COPY_ON_FORK: u16 = 93;
}

/// `RDMA_DRIVER_MLX5`.
const MLX5: u32 = uverbs_uapi::enums::DriverId::MLX5.0;
/// Most bytes of messages in one datagram. libmnl reads 4096 bytes at a time.
const DATAGRAM: usize = 3072;

type Answer = Result<Vec<Attributes>, Errno>;

/// The datagrams that answer a datagram of requests.
pub(super) fn to(mut bytes: &[u8], port: u32) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    while let Some((request, rest)) = Request::split(bytes) {
        if request.flags & NLM_F_REQUEST != 0 {
            datagrams.extend(datagrams_for(&request, port));
        }
        bytes = rest;
    }
    datagrams
}

fn datagrams_for(request: &Request<'_>, port: u32) -> Vec<Vec<u8>> {
    let is_dump = request.flags & NLM_F_DUMP == NLM_F_DUMP;
    let answers = match answer(request, is_dump) {
        Ok(answers) => answers,
        Err(errno) => return vec![status(request, port, errno as i32)],
    };
    let flags = if is_dump { NLM_F_MULTI } else { 0 };
    let encode = |body: &Attributes| message(request.kind, flags, request, port, body.bytes());
    let mut datagrams = pack(answers.iter().map(encode));
    if is_dump {
        datagrams.push(message(NLMSG_DONE, NLM_F_MULTI, request, port, &0u32.to_ne_bytes()));
    } else if request.flags & NLM_F_ACK != 0 {
        datagrams.push(status(request, port, 0));
    }
    datagrams
}

/// `NLMSG_ERROR`: a negated errno, or 0 for an acknowledgement, and the request.
fn status(request: &Request<'_>, port: u32, errno: i32) -> Vec<u8> {
    let mut body = (-errno).to_ne_bytes().to_vec();
    body.extend(request.bytes);
    message(NLMSG_ERROR, 0, request, port, &body)
}

/// Packs messages into datagrams.
fn pack(messages: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut datagrams: Vec<Vec<u8>> = Vec::new();
    for message in messages {
        match datagrams.last_mut().filter(|last| last.len() + message.len() <= DATAGRAM) {
            Some(last) => last.extend(message),
            None => datagrams.push(message),
        }
    }
    datagrams
}

fn answer(request: &Request<'_>, is_dump: bool) -> Answer {
    let devices = device::devices()?;
    let one = || Device::asked_for(&devices, request);
    let all = || Device::all(&devices);
    match (request.kind.wrapping_sub(NLDEV), is_dump) {
        (command::GET, true) => Ok(all().map(|device| device.describe()).collect()),
        (command::GET, false) => Ok(vec![one()?.describe()]),
        (command::PORT_GET, true) => Ok(vec![one()?.describe_port()]),
        (command::PORT_GET, false) => match request.number(attribute::PORT_INDEX) {
            Some(1) => Ok(vec![one()?.describe_port()]),
            _ => Err(Errno::EINVAL),
        },
        (command::SYS_GET, false) => Ok(vec![subsystem()]),
        (command::RES_GET, true) => Ok(all().map(|device| device.count_objects()).collect()),
        (command::RES_GET, false) => Ok(vec![one()?.count_objects()]),
        (command::RES_QP_GET, true) => one()?.list_none_of("qp"),
        (command::RES_CQ_GET, true) => one()?.list_none_of("cq"),
        (command::RES_MR_GET, true) => one()?.list_none_of("mr"),
        (command::RES_PD_GET, true) => one()?.list_none_of("pd"),
        (command::RES_SRQ_GET, true) => one()?.list_none_of("srq"),
        (command::GET_CHARDEV, false) => Ok(vec![match client(request) {
            Some(b"rdma_cm") => connection_manager(),
            _ => one()?.character_device(request)?,
        }]),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// All network namespaces share the devices. COPY_ON_FORK (Linux 5.12) means that a fork does not
/// affect registered memory, which is true here because the device uses the process's own
/// addresses.
fn subsystem() -> Attributes {
    let mut body = Attributes::default();
    body.add(attribute::NETNS_MODE, &[1]).add(attribute::COPY_ON_FORK, &[1]);
    body
}

/// The client whose character device is requested: `uverbs` or `rdma_cm`.
fn client<'a>(request: &Request<'a>) -> Option<&'a [u8]> {
    let client = request.attribute(attribute::CHARDEV_TYPE)?;
    Some(client.strip_suffix(b"\0").unwrap_or(client))
}

/// The host's connection manager, which belongs to no device.
fn connection_manager() -> Attributes {
    let mut body = Attributes::default();
    body.add(attribute::CHARDEV, &encoded(device::number(NodeKind::RdmaCm)).to_ne_bytes());
    body.add(attribute::CHARDEV_ABI, &u64::from(uverbs_uapi::cm::ABI_VERSION).to_ne_bytes());
    body.text(attribute::CHARDEV_NAME, "rdma_cm");
    body
}

struct Device<'a> {
    index: u32,
    name: &'a str,
    tree: &'a Sysfs,
    objects: [(&'static str, usize); 5],
}

impl<'a> Device<'a> {
    fn all(devices: &'a Devices) -> impl Iterator<Item = Self> {
        (0..).zip(devices.all()).map(|(index, device)| Self {
            index,
            name: device.name(),
            tree: &devices.tree,
            objects: device.object_counts(),
        })
    }

    fn asked_for(devices: &'a Devices, request: &Request<'_>) -> Result<Self, Errno> {
        let index = request.number(attribute::DEV_INDEX).ok_or(Errno::EINVAL)?;
        Self::all(devices).find(|device| device.index == index).ok_or(Errno::EINVAL)
    }

    /// An attribute's text in sysfs.
    fn text(&self, name: &str) -> &'a str {
        let path = format!("sys/class/infiniband/{}/{name}", self.name);
        self.tree.read(&path).unwrap_or_default().trim()
    }

    /// The number at the start of an attribute, such as `4: ACTIVE` or `0x1`.
    fn number(&self, name: &str) -> u32 {
        let text = self.text(name).split(':').next().unwrap_or_default();
        match text.strip_prefix("0x") {
            Some(digits) => u32::from_str_radix(digits, 16).unwrap_or(0),
            None => text.parse().unwrap_or(0),
        }
    }

    /// A GUID, or the first half of a GID.
    fn guid(&self, name: &str) -> [u8; 8] {
        let digits: String =
            self.text(name).chars().filter(|digit| *digit != ':').take(16).collect();
        u64::from_str_radix(&digits, 16).unwrap_or(0).to_ne_bytes()
    }

    fn is_roce(&self) -> bool {
        self.text("ports/1/link_layer") == "Ethernet"
    }

    fn handle(&self) -> Attributes {
        let mut body = Attributes::default();
        body.add(attribute::DEV_INDEX, &self.index.to_ne_bytes());
        body.text(attribute::DEV_NAME, self.name);
        body
    }

    /// `fill_dev_info`.
    fn describe(&self) -> Attributes {
        let mut body = self.handle();
        body.add(attribute::PORT_INDEX, &1u32.to_ne_bytes());
        body.text(attribute::FW_VERSION, self.text("fw_ver"));
        body.add(attribute::NODE_GUID, &self.guid("node_guid"));
        body.add(attribute::SYS_IMAGE_GUID, &self.guid("sys_image_guid"));
        body.add(attribute::DEV_NODE_TYPE, &[self.number("node_type") as u8]);
        body.text(attribute::DEV_PROTOCOL, if self.is_roce() { "roce" } else { "ib" });
        body
    }

    /// `fill_port_info`.
    fn describe_port(&self) -> Attributes {
        let mut body = self.handle();
        body.add(attribute::PORT_INDEX, &1u32.to_ne_bytes());
        if !self.is_roce() {
            let capabilities = u64::from(self.number("ports/1/cap_mask"));
            body.add(attribute::CAP_FLAGS, &capabilities.to_ne_bytes());
            body.add(attribute::SUBNET_PREFIX, &self.guid("ports/1/gids/0"));
            body.add(attribute::LID, &self.number("ports/1/lid").to_ne_bytes());
            body.add(attribute::SM_LID, &self.number("ports/1/sm_lid").to_ne_bytes());
            body.add(attribute::LMC, &[self.number("ports/1/lid_mask_count") as u8]);
        }
        body.add(attribute::PORT_STATE, &[self.number("ports/1/state") as u8]);
        body.add(attribute::PORT_PHYS_STATE, &[self.number("ports/1/phys_state") as u8]);
        let directory = format!("sys/class/infiniband/{}/device/net", self.name);
        if let Some(interface) = self.tree.list(&directory).first() {
            let index = self.number(&format!("device/net/{interface}/ifindex"));
            body.add(attribute::NDEV_INDEX, &index.to_ne_bytes());
            body.text(attribute::NDEV_NAME, interface);
        }
        body
    }

    /// `fill_res_info`, of this process's own objects: each process has devices of its own.
    fn count_objects(&self) -> Attributes {
        let mut entries = Attributes::default();
        for (name, count) in self.objects {
            let mut entry = Attributes::default();
            entry.text(attribute::RES_SUMMARY_ENTRY_NAME, name);
            entry.add(attribute::RES_SUMMARY_ENTRY_CURR, &(count as u64).to_ne_bytes());
            entries.nested(attribute::RES_SUMMARY_ENTRY, &entry);
        }
        let mut body = self.handle();
        body.nested(attribute::RES_SUMMARY, &entries);
        body
    }

    /// `res_get_common_dumpit` for a device without objects of this kind: no message. Fails with
    /// EOPNOTSUPP if there are any.
    fn list_none_of(&self, kind: &str) -> Answer {
        match self.objects.iter().any(|(name, count)| *name == kind && *count > 0) {
            true => Err(Errno::EOPNOTSUPP),
            false => Ok(Vec::new()),
        }
    }

    /// `ib_get_client_nl_info`: the only character device of a device is that of uverbs.
    fn character_device(&self, request: &Request<'_>) -> Result<Attributes, Errno> {
        if client(request).ok_or(Errno::EINVAL)? != b"uverbs" {
            return Err(Errno::ENOENT);
        }
        let mut body = Attributes::default();
        body.add(
            attribute::CHARDEV,
            &encoded(device::number(NodeKind::Verbs(self.index as usize))).to_ne_bytes(),
        );
        body.add(attribute::CHARDEV_ABI, &1u64.to_ne_bytes());
        body.text(attribute::CHARDEV_NAME, &format!("uverbs{}", self.index));
        body.add(attribute::DRIVER_ID, &MLX5.to_ne_bytes());
        Ok(body)
    }
}

/// A device number in the encoding of the kernel's `huge_encode_dev`.
fn encoded(number: libc::dev_t) -> u64 {
    let (major, minor) = (u64::from(libc::major(number)), u64::from(libc::minor(number)));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}
