//! Queries of devices, ports, GIDs and partition keys.

use uverbs_uapi::enums::GidType;
use uverbs_uapi::objects::device::{query_gid_table, query_port};
use uverbs_uapi::write::device::{
    ExQueryDevice, ExQueryDeviceResp, GidEntry as KernelGid, QueryDevice,
};
use uverbs_uapi::write::device::{QueryPort, QueryPortRespEx};
use zerocopy::{FromZeros, IntoBytes};

use super::address::{Gid, GidKind, LinkLayer};
use super::attributes::{DeviceAttributes, PortAttributes};
use super::context::Context;
use super::gid::{self, GidChoice, GidEntry};
use crate::error::{Error, ErrorKind, Result};

impl Context {
    /// Attributes of the device, queried once per context.
    ///
    /// # Errors
    /// Errors of the kernel.
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_device_ex")]
    pub fn attributes(&self) -> Result<&DeviceAttributes> {
        let cell = &self.inner().attributes;
        if let Some(known) = cell.get() {
            return Ok(known);
        }
        let asked = self.query_device()?;
        Ok(cell.get_or_init(|| asked))
    }

    /// Queries the extended attributes and mlx5's; on older kernels only the basic ones.
    fn query_device(&self) -> Result<DeviceAttributes> {
        const VERB: &str = "query_device";
        let completion_vectors = self.inner().completion_vectors;
        let extended = self.commands().write_for(VERB, &ExQueryDevice::default());
        match extended {
            Ok((kernel, mlx5)) => Ok(DeviceAttributes { kernel, mlx5, completion_vectors }),
            Err(error) if error.kind() == ErrorKind::DeviceGone => Err(error),
            Err(_) => {
                let base = self.commands().write(VERB, &QueryDevice::default())?;
                let kernel = ExQueryDeviceResp { base, ..ExQueryDeviceResp::default() };
                Ok(DeviceAttributes { kernel, mlx5: FromZeros::new_zeroed(), completion_vectors })
            }
        }
    }

    /// The current attributes of port `port` (from 1).
    ///
    /// # Errors
    /// `InvalidInput` for a port that does not exist; errors of the kernel.
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port: u8) -> Result<PortAttributes> {
        const VERB: &str = "query_port";
        self.require_port(VERB, port)?;
        let mut kernel = QueryPortRespEx::default();
        let mut request = self.commands().request::<query_port::Call>();
        request.constant(query_port::PORT_NUM, port);
        request.output(query_port::RESP, &mut kernel);
        let native = self.commands().send(VERB, &mut request);
        match native {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let request = QueryPort { port_num: port, ..QueryPort::default() };
                kernel.legacy_resp = self.commands().write(VERB, &request)?;
            }
            other => other?,
        }
        Ok(PortAttributes { kernel })
    }

    /// All filled entries of the GID table of `port`.
    ///
    /// # Errors
    /// `InvalidInput` for a port that does not exist; errors of the kernel.
    #[doc(alias = "ibv_query_gid_table")]
    #[doc(alias = "ibv_query_gid")]
    #[doc(alias = "ibv_query_gid_ex")]
    #[doc(alias = "ibv_query_gid_type")]
    pub fn gid_table(&self, port: u8) -> Result<Vec<GidEntry>> {
        self.require_port("query_gid_table", port)?;
        match self.query_gid_table() {
            Ok(all) => Ok(all.into_iter().filter(|entry| entry.port == port).collect()),
            // Kernels before 5.10 have the table in sysfs only.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                let length = self.query_port(port)?.gid_table_length();
                let entries =
                    (0..length).filter_map(|index| self.gid_from_sysfs(port, index).transpose());
                entries.collect()
            }
            Err(error) => Err(error),
        }
    }

    fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        const VERB: &str = "query_gid_table";
        let mut length = 0u64;
        // An ioctl attribute has at most 65535 bytes.
        let capacity = self.gid_capacity()?.clamp(1, 65535 / size_of::<KernelGid>());
        let mut entries = vec![KernelGid::default(); capacity];
        let mut request = self.commands().request::<query_gid_table::Call>();
        request.constant(query_gid_table::ENTRY_SIZE, size_of::<KernelGid>() as u64);
        request.flags(query_gid_table::FLAGS, 0u64).optional();
        let stored =
            request.output_bytes(query_gid_table::RESP_ENTRIES, entries.as_mut_bytes()).map(drop);
        stored.map_err(|error| Error::invalid(VERB, error.to_string()))?;
        request.output(query_gid_table::RESP_NUM_ENTRIES, &mut length);
        self.commands().send(VERB, &mut request)?;
        Ok(entries.iter().take(length as usize).map(gid_entry).collect())
    }

    /// Entries of all ports' GID tables, empty ones included. Queried once per context: the kernel
    /// fixes the number when a device is registered (`gid_tbl_len` of `ib_port_immutable`).
    fn gid_capacity(&self) -> Result<usize> {
        let cell = &self.inner().gid_capacity;
        if let Some(known) = cell.get() {
            return Ok(*known);
        }
        let lengths = (1..=self.attributes()?.ports())
            .map(|port| self.query_port(port).map(|port| port.gid_table_length() as usize));
        let asked = lengths.sum::<Result<usize>>()?;
        Ok(*cell.get_or_init(|| asked))
    }

    fn gid_from_sysfs(&self, port: u8, index: u32) -> Result<Option<GidEntry>> {
        const VERB: &str = "query_gid_table";
        let gid = self.attribute_if_any(VERB, &format!("ports/{port}/gids/{index}"))?;
        let kind = self.attribute_if_any(VERB, &format!("ports/{port}/gid_attrs/types/{index}"))?;
        let kind = match kind.as_deref() {
            Some("RoCE v2") => GidKind::RoceV2,
            Some("IB/RoCE v1") => GidKind::RoceV1,
            _ => GidKind::InfiniBand,
        };
        let gid = gid.and_then(|text| text.parse().ok()).filter(|gid: &Gid| !gid.is_zero());
        Ok(gid.map(|gid| GidEntry { port, index, gid, kind, interface: 0 }))
    }

    fn attribute(&self, verb: &'static str, name: &str) -> Result<String> {
        let text = self.commands().channel().attribute(name);
        text.map_err(|error| Error::attribute(verb, name, &error))
    }

    fn attribute_if_any(&self, verb: &'static str, name: &str) -> Result<Option<String>> {
        match self.attribute(verb, name) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            text => text.map(Some),
        }
    }

    /// Chooses a GID of `port`: the one at `index`, or the most widely routable one if that is
    /// `None`.
    ///
    /// # Errors
    /// `NotFound`, with the filled indices, or with the cure if the table is empty.
    pub fn choose_gid(&self, port: u8, index: Option<u32>) -> Result<GidChoice> {
        match index {
            Some(index) => gid::choose_index(&self.gid_table(port)?, index),
            None => self.best_gid(port, self.query_port(port)?.link_layer()),
        }
    }

    /// The most widely routable GID of `port`, which has the link layer `link`.
    pub(crate) fn best_gid(&self, port: u8, link: LinkLayer) -> Result<GidChoice> {
        gid::choose(link, &self.gid_table(port)?)
    }

    /// The P_Key at `index` of the partition table of `port`. The kernel shows it only in sysfs.
    ///
    /// # Errors
    /// `NotFound` if there is no such entry.
    #[doc(alias = "ibv_query_pkey")]
    #[doc(alias = "ibv_get_pkey_index")]
    pub fn pkey(&self, port: u8, index: u16) -> Result<u16> {
        const VERB: &str = "query_pkey";
        let name = format!("ports/{port}/pkeys/{index}");
        let text = self.attribute(VERB, &name)?;
        let digits = text.trim().trim_start_matches("0x");
        u16::from_str_radix(digits, 16)
            .map_err(|_| Error::invalid(VERB, format!("sysfs says {text:?}, which is not a P_Key")))
    }

    /// A port counter that the driver shows in sysfs (`hw_counters`). For example, `out_of_buffer`
    /// counts messages and frames, of all programs, for which no receive was posted. The driver may
    /// return the same value for 10 ms.
    ///
    /// ```no_run
    /// let context = uverbs::open_default()?;
    /// println!("{} found no posted receive", context.hw_counter(1, "out_of_buffer")?);
    /// # Ok::<(), uverbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidInput` for a port that does not exist, or a name with other characters than letters,
    /// digits and `_`; `NotFound` if the driver has no such counter.
    pub fn hw_counter(&self, port: u8, name: &str) -> Result<u64> {
        const VERB: &str = "hw_counter";
        self.require_port(VERB, port)?;
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            return Err(Error::invalid(VERB, "counters have letters, digits and _ in their names"));
        }
        let path = format!("ports/{port}/hw_counters/{name}");
        let text = self.attribute(VERB, &path)?;
        text.trim().parse().map_err(|_| Error::invalid(VERB, format!("{path} says {text:?}")))
    }

    /// Whether the machine combines writes to the device's doorbell pages. If so, queues write
    /// short requests directly to the device (BlueFlame). Otherwise, as in many virtual machines,
    /// they ring a doorbell, and the device fetches the request.
    ///
    /// # Errors
    /// Errors of allocating such a page.
    pub fn combines_writes(&self) -> Result<bool> {
        self.inner().uars.combines_writes()
    }

    /// The NUMA node that the device is attached to, if the kernel knows it.
    pub fn numa_node(&self) -> Option<u32> {
        let text = self.commands().channel().attribute("device/numa_node").ok()?;
        // The file has -1 if there is none, which does not parse.
        text.trim().parse().ok()
    }

    pub(crate) fn require_port(&self, verb: &'static str, port: u8) -> Result<()> {
        let ports = self.attributes()?.ports();
        if port >= 1 && port <= ports {
            return Ok(());
        }
        Err(Error::invalid(verb, format!("there is no port {port}: the device has 1 to {ports}")))
    }
}

fn gid_entry(entry: &KernelGid) -> GidEntry {
    let kind = match entry.gid_type {
        GidType::ROCE_V1 => GidKind::RoceV1,
        GidType::ROCE_V2 => GidKind::RoceV2,
        _ => GidKind::InfiniBand,
    };
    GidEntry {
        port: entry.port_num as u8,
        index: entry.gid_index,
        gid: Gid(entry.gid),
        kind,
        interface: entry.netdev_ifindex,
    }
}
