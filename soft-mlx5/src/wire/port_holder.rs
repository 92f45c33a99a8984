//! Finds the holder of RoCE's UDP port, for the error message when the port is taken.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use crate::packet::rocev2::UDP_PORT;

/// Describes the socket that is bound to the port at this address, or at all addresses.
pub(super) fn describe(ip: IpAddr) -> String {
    let Some(entry) = entry(ip) else { return "by another program".into() };
    let everywhere = if entry.is_everywhere { ", at all addresses" } else { "" };
    if let Some((name, process)) = process_with(entry.inode) {
        let own = if process == std::process::id() { "this process" } else { "process" };
        return format!("by {own} {process} ({name}){everywhere}");
    }
    if Path::new("/sys/module/rdma_rxe").exists() && entry.user == 0 {
        return format!(
            "{everywhere}, perhaps by the kernel's own software RoCE, rdma_rxe (rdma link)"
        )
        .trim_start_matches(", ")
        .to_owned();
    }
    format!("by a program of user {}{everywhere}", entry.user)
}

struct Entry {
    is_everywhere: bool,
    user: u32,
    inode: u64,
}

fn entry(ip: IpAddr) -> Option<Entry> {
    let (table, any): (_, IpAddr) = match ip {
        IpAddr::V4(_) => ("udp", Ipv4Addr::UNSPECIFIED.into()),
        IpAddr::V6(_) => ("udp6", Ipv6Addr::UNSPECIFIED.into()),
    };
    let dual = (IpAddr::from(Ipv6Addr::UNSPECIFIED), "udp6");
    [(ip, table), (any, table), dual].into_iter().find_map(|(address, table)| {
        let text = fs::read_to_string(format!("/proc/self/net/{table}")).ok()?;
        find(&text, address)
    })
}

/// A line has: number, local address and port in hexadecimal, the peer's, state, queues, timer,
/// retransmissions, user, timeout, inode (`udp4_format_sock`, `__ip6_dgram_sock_seq_show`).
fn find(table: &str, ip: IpAddr) -> Option<Entry> {
    let wanted = format!("{}:{UDP_PORT:04X}", hexadecimal(ip));
    let line = table.lines().skip(1).find(|line| {
        line.split_whitespace().nth(1).is_some_and(|local| local.eq_ignore_ascii_case(&wanted))
    })?;
    let mut words = line.split_whitespace().skip(7);
    let user = words.next()?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    Some(Entry { is_everywhere: ip.is_unspecified(), user, inode })
}

/// Each group of four bytes is printed as an integer of the processor's byte order.
fn hexadecimal(ip: IpAddr) -> String {
    let bytes = match ip {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
    words.map(|word| format!("{:08X}", u32::from_ne_bytes(word))).collect()
}

/// Name and id of a process that has the socket open, among those that this user may inspect.
fn process_with(inode: u64) -> Option<(String, u32)> {
    let target = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.into_iter().find_map(|entry| {
        let process: u32 = entry.file_name().to_str()?.parse().ok()?;
        has_file(&entry.path(), &target).ok().filter(|has| *has)?;
        let name = fs::read_to_string(entry.path().join("comm")).ok()?;
        Some((name.trim_end().to_owned(), process))
    })
}

fn has_file(process: &Path, target: &str) -> io::Result<bool> {
    let files = fs::read_dir(process.join("fd"))?.flatten();
    let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
    Ok(links.any(|link| link == Path::new(target)))
}

#[cfg(test)]
mod tests;
