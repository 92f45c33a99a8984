//! The PCI configuration space of a ConnectX-5: identification, BAR 0 and the capabilities that
//! mlx5_core relies on.
//!
//! The client (QEMU) emulates the BAR registers and the MSI-X table itself. It reads the rest from
//! here when it connects, and forwards the guest's stores. Register layouts: PCI Express Base
//! Specification, names as in `linux/pci_regs.h`.

/// NVIDIA (Mellanox).
const VENDOR: u16 = 0x15b3;
/// ConnectX-5 Ex, as in mlx5_core's table of PCI ids.
const DEVICE: u16 = 0x1019;

const POWER_MANAGEMENT: u8 = 0x40;
const PCI_EXPRESS: u8 = 0x60;
const MSI_X: u8 = 0x9c;

/// Offsets in BAR 0 of the MSI-X table and its pending bits, as on a ConnectX-5.
pub(super) const MSIX_TABLE: u64 = 0x2000;
pub(super) const MSIX_PENDING: u64 = 0x3000;

const COMMAND: usize = 0x04;
const COMMAND_BUS_MASTER: u8 = 1 << 2;

/// The port's link, for the class code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PortType {
    /// InfiniBand.
    InfiniBand,
    /// Ethernet, with RoCE.
    Ethernet,
}

/// The configuration space.
#[derive(Debug)]
pub(super) struct ConfigSpace {
    bytes: Vec<u8>,
}

impl ConfigSpace {
    pub(super) fn new(port: PortType, vectors: u32) -> Self {
        let mut space = Self { bytes: vec![0; 4096] };
        space.identification(port);
        space.power_management();
        space.pci_express();
        space.msi_x(vectors);
        space
    }

    /// Reads; bytes beyond the end are zero.
    pub(super) fn read(&self, offset: u64, data: &mut [u8]) {
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = self.bytes.get(offset as usize + index).copied().unwrap_or(0);
        }
    }

    /// Stores to the writable registers: command, interrupt line, power, device and link control.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let express = usize::from(PCI_EXPRESS);
        for (index, byte) in data.iter().enumerate() {
            let at = offset as usize + index;
            let writable = matches!(at, COMMAND | 0x05 | 0x3c)
                || at == usize::from(POWER_MANAGEMENT) + 4
                || (express + 0x08..express + 0x0a).contains(&at)
                || (express + 0x10..express + 0x12).contains(&at);
            if writable {
                self.bytes[at] = *byte;
            }
        }
    }

    /// Whether the function may read and write guest memory.
    pub(super) fn bus_master(&self) -> bool {
        self.bytes[COMMAND] & COMMAND_BUS_MASTER != 0
    }

    fn identification(&mut self, port: PortType) {
        let class: u32 = match port {
            PortType::InfiniBand => 0x02_07_00,
            PortType::Ethernet => 0x02_00_00,
        };
        self.put16(0x00, VENDOR);
        self.put16(0x02, DEVICE);
        self.put16(0x06, 1 << 4);
        self.put32(0x08, class << 8);
        self.put32(0x10, 0xc);
        self.put16(0x2c, VENDOR);
        self.put16(0x2e, 0x0008);
        self.bytes[0x34] = POWER_MANAGEMENT;
    }

    fn power_management(&mut self) {
        let base = usize::from(POWER_MANAGEMENT);
        self.capability(POWER_MANAGEMENT, 0x01, PCI_EXPRESS);
        self.put16(base + 2, 3);
        self.put16(base + 4, 1 << 3);
    }

    /// An endpoint, version 2: 512-byte payloads, a link of sixteen lanes at 8 GT/s.
    fn pci_express(&mut self) {
        let base = usize::from(PCI_EXPRESS);
        self.capability(PCI_EXPRESS, 0x10, MSI_X);
        self.put16(base + 0x02, 2);
        self.put32(base + 0x04, 1 << 28 | 1 << 15 | 2);
        self.put16(base + 0x08, 2 << 12);
        self.put32(base + 0x0c, 16 << 4 | 3);
        self.put16(base + 0x12, 16 << 4 | 3);
        self.put32(base + 0x24, 1 << 4);
        self.put32(base + 0x2c, 0x7 << 1);
        self.put16(base + 0x30, 3);
    }

    fn msi_x(&mut self, vectors: u32) {
        let base = usize::from(MSI_X);
        self.capability(MSI_X, 0x11, 0);
        self.put16(base + 2, vectors.saturating_sub(1) as u16);
        self.put32(base + 4, MSIX_TABLE as u32);
        self.put32(base + 8, MSIX_PENDING as u32);
    }

    fn capability(&mut self, at: u8, id: u8, next: u8) {
        self.bytes[usize::from(at)] = id;
        self.bytes[usize::from(at) + 1] = next;
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_list_ends_and_names_what_mlx5_core_needs() {
        let space = ConfigSpace::new(PortType::InfiniBand, 8);
        let mut ids = Vec::new();
        let mut at = space.bytes[0x34];
        while at != 0 {
            ids.push(space.bytes[usize::from(at)]);
            at = space.bytes[usize::from(at) + 1];
        }
        assert_eq!(ids, [0x01, 0x10, 0x11]);
    }

    #[test]
    fn identification_is_read_only_and_bus_mastering_is_not() {
        let mut space = ConfigSpace::new(PortType::Ethernet, 8);
        space.write(0, &[0xff; 8]);
        let mut id = [0; 4];
        space.read(0, &mut id);
        assert_eq!(id, [0xb3, 0x15, 0x19, 0x10]);
        assert!(space.bus_master());
        space.write(4, &[0]);
        assert!(!space.bus_master());
    }
}
