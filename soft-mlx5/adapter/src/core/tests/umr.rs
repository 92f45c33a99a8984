//! Memory keys changed through the kernel driver's own queue pair: registration without commands
//! (`umr.c` of mlx5_ib).

use uverbs_mlx5_format::{
    DataSegment, MkeyContextSegment, Opcode, Syndrome, U16, U32, U64, UmrControlSegment,
};
use zerocopy::IntoBytes;

use super::harness::*;
use crate::core::*;
use crate::memory::PageMap;

type U = UmrControlSegment;

const PAGE: u64 = 4096;
/// Whether page list entries may be read and written (`MLX5_MTT_READ`, `MLX5_MTT_WRITE`).
const PRESENT: u64 = 3;

const ACCESS: u64 = U::MASK_LOCAL_READ
    | U::MASK_LOCAL_WRITE
    | U::MASK_REMOTE_READ
    | U::MASK_REMOTE_WRITE
    | U::MASK_ATOMIC;
const ENABLE: u64 = U::MASK_KEY | U::MASK_FREE;
const TRANSLATION: u64 = U::MASK_LENGTH | U::MASK_PAGE_SIZE | U::MASK_START_ADDRESS;

/// A connection between two hosts. Host 1 also has the driver's queue pair and a free key of its
/// cache, with space for eight pages.
struct Bench {
    pair: Pair,
    driver: QpHandle,
    cq: CqHandle,
    key: Mkey,
    /// The address of page lists.
    list: Region,
    /// Three pages that are not contiguous.
    pages: [u64; 3],
    start: u64,
    length: u64,
}

impl Bench {
    fn new() -> Self {
        let mut pair = Pair::new(QpType::Rc);
        let host = pair.host(1);
        let cq = host.cq(6);
        let mut params = host.qp_params(QpType::RegUmr, &cq, &cq);
        params.pd = host.core.create_pd().unwrap();
        params.reserved_lkey = true;
        params.receive = ReceiveSource::None;
        let pd = params.pd;
        let driver = host.create(params);
        host.make_rts(&driver, &QpAttributes::default());
        let key = host.core.create_mkey(MkeyParams {
            free: true,
            translation_octowords: 4,
            ..MkeyParams::region(pd, 0, 0, Access::UMR, PageMap::pages(12, Vec::new(), 0))
        });
        let block = host.alloc(8 * PAGE);
        let pages = [block + 4 * PAGE, block, block + 2 * PAGE];
        let key = key.unwrap();
        let list = host.region(64, Access::LOCAL_WRITE);
        Self { pair, driver, cq, key, list, pages, start: 0x7000_0123, length: 2 * PAGE + 100 }
    }

    fn context(&mut self, rights: Access) -> MkeyContextSegment {
        let pd = self.pair.host(1).pd.0;
        MkeyContextSegment {
            access_flags: (rights | Access::LOCAL_READ).bits(),
            qpn_mkey: U32::new(ANY_QP << 8 | 5),
            flags_pd: U32::new(pd),
            start_address: U64::new(self.start),
            length: U64::new(self.length),
            log_page_size: 12,
            ..MkeyContextSegment::default()
        }
    }

    /// Posts a UMR with a page list in memory, or with an empty inline list; returns its status.
    fn umr(&mut self, control: U, context: MkeyContextSegment, list: &[u64]) -> Option<Syndrome> {
        let host = self.pair.host(1);
        let mut raw = U {
            flags: control.flags | if list.is_empty() { U::FLAG_INLINE } else { 0 },
            klm_octowords: U16::new((list.len() as u16 * 8).next_multiple_of(64) / 16),
            ..control
        }
        .as_bytes()
        .to_vec();
        raw.extend_from_slice(context.as_bytes());
        if !list.is_empty() {
            let at = self.list.address;
            for (index, page) in list.iter().enumerate() {
                host.memory_write(at + 8 * index as u64, &(page | PRESENT).to_be_bytes());
            }
            // A key of another PD than the queue pair's.
            let lkey = self.list.key.0;
            raw.extend_from_slice(DataSegment::new(at, 64, lkey).as_bytes());
        }
        let wr = Wr { raw, ..Wr::new(Opcode::UMR).immediate(Opcode::UMR, self.key.0) };
        host.post(&mut self.driver, &wr);
        self.pair.world.run_until_idle();
        let done = self.pair.host(1).poll_all(&mut self.cq);
        assert_eq!(done.len(), 1);
        done[0].syndrome
    }

    /// Registers the three pages as the driver does.
    fn register(&mut self, rights: Access) -> Option<Syndrome> {
        let control = U {
            flags: U::FLAG_CHECK_NOT_FREE,
            mkey_mask: U64::new(ENABLE | ACCESS | U::MASK_PD | TRANSLATION),
            ..U::default()
        };
        let (context, pages) = (self.context(rights), self.pages);
        self.umr(control, context, &pages)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Option<Syndrome> {
        let key = Mkey(self.key.0 | 5);
        self.pair.post(0, &Wr::write(self.start + offset, key).inline(bytes));
        self.pair.world.run_until_idle();
        self.pair.one(0).syndrome
    }
}

#[test]
fn a_cached_key_becomes_a_region() {
    let mut bench = Bench::new();
    assert_eq!(bench.register(ALL), None);
    // The write crosses the end of the first page: the key begins 0x123 bytes into the page.
    assert_eq!(bench.write(PAGE - 0x123 - 4, b"12345678"), None);
    let pages = bench.pages;
    let host = bench.pair.host(1);
    assert_eq!(host.bytes(pages[0] + PAGE - 4, 4), b"1234");
    assert_eq!(host.bytes(pages[1], 4), b"5678");
    let length = bench.length;
    assert_eq!(bench.write(length - 4, b"12345678"), Some(Syndrome::REMOTE_ACCESS));
}

#[test]
fn a_key_moves_between_pds_with_its_region() {
    let mut bench = Bench::new();
    let key = bench.key;
    let domain = |bench: &mut Bench| bench.pair.host(1).core.query_mkey(key).unwrap().pd;
    let cached = domain(&mut bench);
    assert_eq!(bench.register(ALL), None);
    assert_eq!(domain(&mut bench), bench.pair.host(1).pd);
    // Revoking moves the key to the driver's PD and makes it free.
    let mut context = bench.context(Access::empty());
    context.flags_pd = U32::new(cached.0);
    context.free = MkeyContextSegment::FREE;
    let control = U { mkey_mask: U64::new(U::MASK_PD | U::MASK_FREE), ..U::default() };
    assert_eq!(bench.umr(control, context, &[]), None);
    assert_eq!(domain(&mut bench), cached);
    assert_eq!(bench.write(0, b"x"), Some(Syndrome::REMOTE_ACCESS));
    let core = &mut bench.pair.host(1).core;
    core.destroy_mkey(key).unwrap();
    core.destroy_qp(bench.driver.qpn).unwrap();
    core.destroy_pd(cached).expect("the count of its users is right");
}

#[test]
fn a_key_cannot_move_to_a_pd_that_does_not_exist() {
    let mut bench = Bench::new();
    assert_eq!(bench.register(ALL), None);
    let mut context = bench.context(ALL);
    context.flags_pd = U32::new(0x77);
    let control = U { mkey_mask: U64::new(U::MASK_PD), ..U::default() };
    assert_eq!(bench.umr(control, context, &[]), Some(Syndrome::MW_BIND));
}

#[test]
fn rights_change_without_the_pages() {
    let mut bench = Bench::new();
    assert_eq!(bench.register(ALL), None);
    let control =
        U { flags: U::FLAG_CHECK_FREE, mkey_mask: U64::new(ACCESS | U::MASK_PD), ..U::default() };
    let context = bench.context(Access::LOCAL_WRITE);
    assert_eq!(bench.umr(control, context, &[]), None);
    assert_eq!(bench.write(0, b"x"), Some(Syndrome::REMOTE_ACCESS));
}

#[test]
fn a_page_list_comes_in_several_parts() {
    let mut bench = Bench::new();
    let pages = bench.pages;
    let first = U { flags: U::FLAG_CHECK_NOT_FREE, ..U::default() };
    let context = bench.context(ALL);
    assert_eq!(bench.umr(first, context, &pages[..2]), None);
    let last = U {
        flags: U::FLAG_CHECK_NOT_FREE | U::FLAG_TRANSLATION_OFFSET,
        translation_offset: U16::new(1),
        mkey_mask: U64::new(ENABLE | ACCESS | U::MASK_PD | TRANSLATION),
        ..U::default()
    };
    let context = bench.context(ALL);
    assert_eq!(bench.umr(last, context, &pages[2..]), None);
    for (index, page) in pages.into_iter().enumerate() {
        let offset = if index == 0 { 0 } else { index as u64 * PAGE - 0x123 };
        assert_eq!(bench.write(offset, b"here"), None);
        let inside = if index == 0 { 0x123 } else { 0 };
        assert_eq!(bench.pair.host(1).bytes(page + inside, 4), b"here", "page {index}");
    }
}

#[test]
fn umrs_of_keys_in_the_wrong_state_are_refused() {
    let mut bench = Bench::new();
    let context = bench.context(ALL);
    let used = U { flags: U::FLAG_CHECK_FREE, mkey_mask: U64::new(ACCESS), ..U::default() };
    assert_eq!(bench.umr(used, context, &[]), Some(Syndrome::MW_BIND), "free");
    let mut bench = Bench::new();
    assert_eq!(bench.register(ALL), None);
    assert_eq!(bench.register(ALL), Some(Syndrome::MW_BIND), "in use");
}
