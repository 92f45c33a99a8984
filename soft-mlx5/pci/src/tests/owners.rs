//! Objects of user contexts: access by commands of other contexts, and uses that prevent their
//! destruction.

use super::driver::{Driver, Input, run};
use super::frames::{Receiver, Sender, frame, pair, station, steer};
use crate::bits::{Field, field};
use crate::layout::command::{alloc_q_counter_out, header, object, query_q_counter_in};
use crate::layout::context::{cqc, dctc, mkc, qpc, rmpc, tisc, wq, xrc_srqc};
use crate::layout::ethernet::{
    create_flow_group_in, flow_context, flow_counter, flow_table_context, rqc, rqtc, set_fte_in,
    sqc, tirc,
};

const UID: Field = field(0x50, 16);
const BAD_RESOURCE: u64 = 5;
const BUSY: u64 = 6;
const LIMIT_EXCEEDED: u64 = 8;

/// Offsets of contexts, work queues and lists in commands about Ethernet objects.
const CONTEXT: usize = 0x100;
const QUEUE: usize = CONTEXT + 0x180;
const LIST: usize = CONTEXT + 0x780 + 8;

const LOG_SIZE: Field = flow_table_context::LOG_SIZE.at(0xc0);

/// The number of a new user context.
fn user(driver: &mut Driver) -> u64 {
    UID.get(&driver.done(Input::new(0xa04, 64), 16))
}

fn driver() -> Driver {
    pair().into_iter().next().unwrap()
}

fn status(driver: &mut Driver, input: Input) -> u64 {
    driver.command(input, 1 << 10).map_or_else(|refused| refused.0, |_| 0)
}

/// The objects of a user context.
#[derive(Clone, Copy)]
struct Objects {
    pd: u32,
    xrcd: u32,
    domain: u32,
    counters: u32,
    key: u32,
    cq: u32,
    pool: u32,
    xrc_srq: u32,
    qp: u32,
    target: u32,
    tis: u32,
    sq: u32,
    rq: u32,
    rqt: u32,
    direct: u32,
    tir: u32,
    table: u32,
    group: u32,
}

/// Creates objects for a user context. They refer to objects of the same context, unless a test
/// changes that.
struct Maker<'a> {
    driver: &'a mut Driver,
    uid: u64,
}

impl Maker<'_> {
    fn input(&self, opcode: u64, length: usize) -> Input {
        Input::new(opcode, length).set(header::UID, self.uid)
    }

    fn key(&self, pd: u32) -> Input {
        self.input(0x200, 272)
            .set(mkc::ACCESS_MODE_1_0.at(0x80), 1)
            .set(mkc::PD.at(0x80), pd.into())
            .set(mkc::QPN.at(0x80), 0xff_ffff)
    }

    fn cq(&mut self) -> Input {
        let (ring, record) = (self.driver.alloc(64 << 6), self.driver.alloc(8));
        self.input(0x400, 272)
            .set(cqc::LOG_CQ_SIZE.at(0x80), 6)
            .set(cqc::UAR_PAGE.at(0x80), self.driver.uar.into())
            .set(cqc::C_EQN_OR_APU_ELEMENT.at(0x80), self.driver.eq.into())
            .set(cqc::DBR_ADDR.at(0x80), record)
            .pages(ring, 64 << 6)
    }

    /// A work queue of 16 entries of 64 bytes.
    fn queue(&mut self, input: Input, pd: u32) -> Input {
        let (ring, record) = (self.driver.alloc(16 << 6), self.driver.alloc(8));
        input
            .set(wq::WQ_TYPE.at(QUEUE), 1)
            .set(wq::PD.at(QUEUE), pd.into())
            .set(wq::UAR_PAGE.at(QUEUE), self.driver.uar.into())
            .set(wq::DBR_ADDR.at(QUEUE), record)
            .set(wq::LOG_WQ_STRIDE.at(QUEUE), 6)
            .set(wq::LOG_WQ_SZ.at(QUEUE), 4)
            .pages(ring, 16 << 6)
    }

    fn pool(&mut self, pd: u32) -> Input {
        let input = self.input(0x90c, 272).set(rmpc::STATE.at(CONTEXT), 1);
        self.queue(input, pd)
    }

    fn xrc_srq(&mut self, pd: u32, xrcd: u32, cq: u32) -> Input {
        let ring = self.driver.alloc(16 << 5);
        self.input(0x705, 272)
            .set(xrc_srqc::LOG_XRC_SRQ_SIZE.at(0x80), 4)
            .set(xrc_srqc::LOG_RQ_STRIDE.at(0x80), 1)
            .set(xrc_srqc::PD.at(0x80), pd.into())
            .set(xrc_srqc::XRCD.at(0x80), xrcd.into())
            .set(xrc_srqc::CQN.at(0x80), cq.into())
            .pages(ring, 16 << 5)
    }

    fn qp(&mut self, pd: u32, cq: u32, pool: u32) -> Input {
        let (ring, record) = (self.driver.alloc(64 << 4), self.driver.alloc(8));
        self.input(0x500, 272)
            .set(qpc::PD.at(0xc0), pd.into())
            .set(qpc::RQ_TYPE.at(0xc0), 1)
            .set(qpc::SRQN_RMPN_XRQN.at(0xc0), pool.into())
            .set(qpc::LOG_SQ_SIZE.at(0xc0), 4)
            .set(qpc::UAR_PAGE.at(0xc0), self.driver.uar.into())
            .set(qpc::CQN_SND.at(0xc0), cq.into())
            .set(qpc::CQN_RCV.at(0xc0), cq.into())
            .set(qpc::DBR_ADDR.at(0xc0), record)
            .pages(ring, 64 << 4)
    }

    fn target(&self, pd: u32, cq: u32, pool: u32) -> Input {
        self.input(0x710, 272)
            .set(dctc::PD.at(0x80), pd.into())
            .set(dctc::CQN.at(0x80), cq.into())
            .set(dctc::SRQN_XRQN.at(0x80), pool.into())
            .set(dctc::MTU.at(0x80), 3)
            .set(dctc::PORT.at(0x80), 1)
    }

    fn tis(&self, domain: u32) -> Input {
        self.input(0x912, 192).set(tisc::TRANSPORT_DOMAIN.at(CONTEXT), domain.into())
    }

    fn sq(&mut self, pd: u32, cq: u32, tis: u32) -> Input {
        let input = self
            .input(0x904, 272)
            .set(sqc::CQN.at(CONTEXT), cq.into())
            .set(sqc::TIS_LST_SZ.at(CONTEXT), 1)
            .set(sqc::TIS_NUM_0.at(CONTEXT), tis.into());
        self.queue(input, pd)
    }

    fn rq(&mut self, pd: u32, cq: u32) -> Input {
        let input = self.input(0x908, 272).set(rqc::CQN.at(CONTEXT), cq.into());
        self.queue(input, pd)
    }

    fn rq_of_pool(&self, pool: u32, cq: u32) -> Input {
        self.input(0x908, 272)
            .set(rqc::MEM_RQ_TYPE.at(CONTEXT), 1)
            .set(rqc::RMPN.at(CONTEXT), pool.into())
            .set(rqc::CQN.at(CONTEXT), cq.into())
    }

    fn rqt(&self, queues: [u32; 2]) -> Input {
        self.input(0x916, 280)
            .set(rqtc::RQT_MAX_SIZE.at(CONTEXT), 2)
            .set(rqtc::RQT_ACTUAL_SIZE.at(CONTEXT), 2)
            .set(field(LIST, 24), queues[0].into())
            .set(field(LIST + 32, 24), queues[1].into())
    }

    fn direct(&self, domain: u32, queue: u32) -> Input {
        self.input(0x900, 272)
            .set(tirc::TRANSPORT_DOMAIN.at(CONTEXT), domain.into())
            .set(tirc::INLINE_RQN.at(CONTEXT), queue.into())
    }

    fn tir(&self, domain: u32, table: u32) -> Input {
        self.input(0x900, 272)
            .set(tirc::TRANSPORT_DOMAIN.at(CONTEXT), domain.into())
            .set(tirc::DISP_TYPE.at(CONTEXT), 1)
            .set(tirc::INDIRECT_TABLE.at(CONTEXT), table.into())
    }

    fn table(&self) -> Input {
        self.input(0x930, 64).set(flow_table_context::LEVEL.at(0xc0), 5).set(LOG_SIZE, 2)
    }

    fn group(&self, table: u32) -> Input {
        self.input(0x933, 1024)
            .set(create_flow_group_in::TABLE_ID, table.into())
            .set(create_flow_group_in::END_FLOW_INDEX, 3)
    }

    /// A flow table entry with a TIR as its destination.
    fn entry(&self, (table, group): (u32, u32), index: u64, tir: u32) -> Input {
        self.input(0x936, 840)
            .set(set_fte_in::TABLE_ID, table.into())
            .set(set_fte_in::FLOW_INDEX, index)
            .set(flow_context::GROUP_ID.at(0x200), group.into())
            .set(flow_context::ACTION.at(0x200), 4)
            .set(flow_context::DESTINATION_LIST_SIZE.at(0x200), 1)
            .set(field(0x200 + 0x1800, 32), 2 << 24 | u64::from(tir))
    }

    fn create(&mut self, input: impl FnOnce(&mut Self) -> Input) -> u32 {
        let input = input(self);
        self.driver.create(input)
    }

    fn all(mut self) -> Objects {
        let pd = self.create(|maker| maker.input(0x800, 16));
        let xrcd = self.create(|maker| maker.input(0x80e, 16));
        let domain = self.create(|maker| maker.input(0x816, 16));
        let counters = self.driver.done(self.input(0x771, 16), 16);
        let counters = alloc_q_counter_out::COUNTER_SET_ID.get32(&counters);
        let key = self.create(|maker| maker.key(pd));
        let cq = self.create(Self::cq);
        let pool = self.create(|maker| maker.pool(pd));
        let xrc_srq = self.create(|maker| maker.xrc_srq(pd, xrcd, cq));
        let qp = self.create(|maker| maker.qp(pd, cq, pool));
        let target = self.create(|maker| maker.target(pd, cq, pool));
        let tis = self.create(|maker| maker.tis(domain));
        let sq = self.create(|maker| maker.sq(pd, cq, tis));
        let rq = self.create(|maker| maker.rq(pd, cq));
        let rqt = self.create(|maker| maker.rqt([rq; 2]));
        let direct = self.create(|maker| maker.direct(domain, rq));
        let tir = self.create(|maker| maker.tir(domain, rqt));
        let table = self.create(|maker| maker.table());
        let group = self.create(|maker| maker.group(table));
        let entry = self.entry((table, group), 0, tir);
        self.driver.done(entry, 16);
        Objects {
            pd,
            xrcd,
            domain,
            counters,
            key,
            cq,
            pool,
            xrc_srq,
            qp,
            target,
            tis,
            sq,
            rq,
            rqt,
            direct,
            tir,
            table,
            group,
        }
    }
}

impl Objects {
    /// The commands that change, query or destroy each object.
    fn commands(&self) -> Vec<Input> {
        let one: [(u32, &[u64]); 16] = [
            (self.pd, &[0x801]),
            (self.xrcd, &[0x80f]),
            (self.domain, &[0x817]),
            (self.key, &[0x201, 0x202]),
            (self.cq, &[0x401, 0x402, 0x403]),
            (self.pool, &[0x90d, 0x90e, 0x90f]),
            (self.xrc_srq, &[0x706, 0x707, 0x708]),
            (
                self.qp,
                &[0x501, 0x502, 0x503, 0x504, 0x505, 0x506, 0x507, 0x50a, 0x50b, 0x50c, 0x50e],
            ),
            (self.target, &[0x711, 0x712, 0x713, 0x714]),
            (self.tis, &[0x913, 0x914, 0x915]),
            (self.sq, &[0x905, 0x906, 0x907]),
            (self.rq, &[0x909, 0x90a, 0x90b]),
            (self.rqt, &[0x917, 0x918, 0x919]),
            (self.direct, &[0x901, 0x902, 0x903]),
            (self.tir, &[0x901, 0x902, 0x903]),
            (self.qp, &[0x806, 0x807]),
        ];
        let named = one.into_iter().flat_map(|(number, opcodes)| {
            opcodes.iter().map(move |opcode| Input::new(*opcode, 280).number(number))
        });
        let counters = [
            Input::new(0x772, 16).set(alloc_q_counter_out::COUNTER_SET_ID, self.counters.into()),
            Input::new(0x773, 32).set(query_q_counter_in::COUNTER_SET_ID, self.counters.into()),
        ];
        named.chain(counters).collect()
    }

    /// The commands that destroy each object, users before the objects that they use.
    fn destructions(&self) -> Vec<Input> {
        let of_table =
            |opcode| Input::new(opcode, 64).set(create_flow_group_in::TABLE_ID, self.table.into());
        let numbers = [
            (0x902, self.tir),
            (0x902, self.direct),
            (0x918, self.rqt),
            (0x90a, self.rq),
            (0x906, self.sq),
            (0x914, self.tis),
            (0x817, self.domain),
            (0x711, self.target),
            (0x501, self.qp),
            (0x706, self.xrc_srq),
            (0x90e, self.pool),
            (0x401, self.cq),
            (0x202, self.key),
            (0x80f, self.xrcd),
            (0x801, self.pd),
        ];
        let numbers = numbers.map(|(opcode, number)| Input::new(opcode, 16).number(number));
        let counters = alloc_q_counter_out::COUNTER_SET_ID;
        let counters = Input::new(0x772, 16).set(counters, self.counters.into());
        [of_table(0x938), of_table(0x934).set(field(0xc0, 32), self.group.into()), of_table(0x931)]
            .into_iter()
            .chain(numbers)
            .chain([counters])
            .collect()
    }
}

#[test]
fn commands_of_another_context_reach_no_object() {
    let mut driver = driver();
    let [owner, other] = [(); 2].map(|()| user(&mut driver));
    let objects = Maker { driver: &mut driver, uid: owner }.all();
    for input in objects.commands().into_iter().chain(objects.destructions()) {
        let opcode = header::OPCODE.get(input.bytes());
        let result = status(&mut driver, input.set(header::UID, other));
        assert_eq!(result, BAD_RESOURCE, "{opcode:#x}");
    }
    for input in objects.destructions() {
        let opcode = header::OPCODE.get(input.bytes());
        let result = status(&mut driver, input.set(header::UID, owner));
        assert_eq!(result, 0, "{opcode:#x}");
    }
}

/// The driver can access all objects of programs. Programs cannot access the driver's Ethernet
/// objects. Whether an adapter refuses them others is unconfirmed.
#[test]
fn the_driver_reaches_all_objects_and_programs_none_of_its_ethernet_objects() {
    let mut driver = driver();
    let owner = user(&mut driver);
    let kernels = Maker { driver: &mut driver, uid: 0 }.all();
    let numbers = [
        (0x902, kernels.tir),
        (0x918, kernels.rqt),
        (0x914, kernels.tis),
        (0x817, kernels.domain),
        (0x90a, kernels.rq),
        (0x90b, kernels.rq),
        (0x906, kernels.sq),
        (0x907, kernels.sq),
    ];
    for (opcode, number) in numbers {
        let input = Input::new(opcode, 16).number(number).set(header::UID, owner);
        assert_eq!(status(&mut driver, input), BAD_RESOURCE, "{opcode:#x}");
    }
    let objects = Maker { driver: &mut driver, uid: owner }.all();
    for input in objects.destructions().into_iter().chain(kernels.destructions()) {
        let opcode = header::OPCODE.get(input.bytes());
        assert_eq!(status(&mut driver, input), 0, "{opcode:#x}");
    }
}

#[test]
fn objects_refer_to_none_of_another_context() {
    let mut driver = driver();
    let [owner, other] = [(); 2].map(|()| user(&mut driver));
    let kernels = Maker { driver: &mut driver, uid: 0 }.all();
    let theirs = Maker { driver: &mut driver, uid: owner }.all();
    let mine = Maker { driver: &mut driver, uid: other }.all();
    let mut maker = Maker { driver: &mut driver, uid: other };
    let foreign = [
        ("key, pd", maker.key(theirs.pd)),
        ("pool, pd", maker.pool(theirs.pd)),
        ("XRC SRQ, pd", maker.xrc_srq(theirs.pd, mine.xrcd, mine.cq)),
        ("XRC SRQ, xrcd", maker.xrc_srq(mine.pd, theirs.xrcd, mine.cq)),
        ("XRC SRQ, cq", maker.xrc_srq(mine.pd, mine.xrcd, theirs.cq)),
        ("QP, pd", maker.qp(theirs.pd, mine.cq, mine.pool)),
        ("QP, cq", maker.qp(mine.pd, theirs.cq, mine.pool)),
        ("QP, pool", maker.qp(mine.pd, mine.cq, theirs.pool)),
        ("DCT, pd", maker.target(theirs.pd, mine.cq, mine.pool)),
        ("DCT, cq", maker.target(mine.pd, theirs.cq, mine.pool)),
        ("DCT, pool", maker.target(mine.pd, mine.cq, theirs.pool)),
        ("TIS, domain", maker.tis(theirs.domain)),
        ("SQ, pd", maker.sq(theirs.pd, mine.cq, mine.tis)),
        ("SQ, cq", maker.sq(mine.pd, theirs.cq, mine.tis)),
        ("SQ, tis", maker.sq(mine.pd, mine.cq, theirs.tis)),
        ("RQ, pd", maker.rq(theirs.pd, mine.cq)),
        ("RQ, cq", maker.rq(mine.pd, theirs.cq)),
        ("RQ, pool", maker.rq_of_pool(theirs.pool, mine.cq)),
        ("RQT, first", maker.rqt([theirs.rq, mine.rq])),
        ("RQT, second", maker.rqt([mine.rq, theirs.rq])),
        ("TIR, domain", maker.direct(theirs.domain, mine.rq)),
        ("TIR, queue", maker.direct(mine.domain, theirs.rq)),
        ("TIR, table", maker.tir(mine.domain, theirs.rqt)),
        ("RQT, kernel's", maker.rqt([mine.rq, kernels.rq])),
        ("TIR, kernel's", maker.direct(mine.domain, kernels.rq)),
        ("entry, TIR", maker.entry((mine.table, mine.group), 1, theirs.tir)),
        ("entry, table", maker.entry((theirs.table, theirs.group), 1, mine.tir)),
        ("group, table", maker.group(theirs.table)),
        // A change of a list.
        (
            "RQT, changed",
            maker
                .rqt([mine.rq, theirs.rq])
                .set(header::OPCODE, 0x917)
                .set(field(0x80, 64), 1)
                .number(mine.rqt),
        ),
        // An SQ is not a receive queue.
        ("RQT, SQ", maker.rqt([mine.sq; 2])),
        ("TIR, SQ", maker.direct(mine.domain, mine.sq)),
        ("TIR, QP", maker.direct(mine.domain, mine.qp)),
    ];
    for (what, input) in foreign {
        assert_eq!(status(&mut driver, input), BAD_RESOURCE, "{what}");
    }
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let mut driver = driver();
    for uid in [0, user(&mut driver)] {
        let objects = Maker { driver: &mut driver, uid }.all();
        let all: Vec<_> = objects.destructions();
        let named =
            |input: &Input| (header::OPCODE.get(input.bytes()), object::NUMBER.get(input.bytes()));
        // Nothing uses a key, an SQ, a QP, a DCT, an XRC SRQ or counters.
        let unused = [0x202, 0x906, 0x501, 0x711, 0x706, 0x772, 0x938];
        for input in all.iter().filter(|input| !unused.contains(&named(input).0)) {
            if named(input) == (0x902, objects.direct.into()) {
                continue;
            }
            let result = status(&mut driver, input.clone().set(header::UID, uid));
            assert_eq!(result, BUSY, "{:x?}", named(input));
        }
        for input in all {
            let name = named(&input);
            assert_eq!(status(&mut driver, input.set(header::UID, uid)), 0, "{name:x?}");
        }
    }
}

#[test]
fn a_changed_list_holds_its_queues() {
    let mut driver = driver();
    let uid = user(&mut driver);
    let objects = Maker { driver: &mut driver, uid }.all();
    let mut maker = Maker { driver: &mut driver, uid };
    let queue = maker.create(|maker| maker.rq(objects.pd, objects.cq));
    let change = maker.rqt([queue; 2]).set(header::OPCODE, 0x917).number(objects.rqt);
    let destroy = |number| Input::new(0x90a, 16).set(header::UID, uid).number(number);
    driver.done(change.set(field(0x80, 64), 1), 16);
    assert_eq!(status(&mut driver, destroy(queue)), BUSY);
    driver.done(Input::new(0x902, 16).set(header::UID, uid).number(objects.direct), 8);
    driver.done(destroy(objects.rq), 8);
}

/// The list of a table has more queues than the table uses. Nothing checks the rest of the list.
#[test]
fn a_table_without_queues_leads_to_none() {
    let mut drivers = pair();
    let mut sender = Sender::new(&mut drivers[0]);
    let mut kernels = Receiver::new(&mut drivers[1]);
    let uid = user(&mut drivers[1]);
    let objects = Maker { driver: &mut drivers[1], uid }.all();
    let mut maker = Maker { driver: &mut drivers[1], uid };
    let empty = maker.rqt([kernels.number; 2]).set(rqtc::RQT_ACTUAL_SIZE.at(CONTEXT), 0);
    let change = empty.clone().set(header::OPCODE, 0x917).number(objects.rqt);
    maker.driver.done(change.set(field(0x80, 64), 1), 16);
    let created = maker.create(|_| empty);
    let tir = maker.create(|maker| maker.tir(objects.domain, created));
    let arrived = [objects.tir, tir].map(|tir| {
        steer(&mut drivers[1], station(2).mac(), tir);
        sender.send(&mut drivers[0], &frame(station(2).mac(), 1));
        run(&mut drivers, |drivers| drivers[0].poll(&mut sender.cq).is_some());
        run(&mut drivers, |_| true);
        drivers[1].poll(&mut kernels.cq).is_some()
    });
    assert_eq!(arrived, [false; 2], "changed, created");
}

#[test]
fn a_user_context_with_objects_is_not_destroyed() {
    let mut driver = driver();
    let uid = user(&mut driver);
    let end = || Input::new(0xa06, 16).set(UID, uid);
    let page = driver.alloc(4096);
    let umem = Input::new(0xa08, 64).set(field(0x140, 64), 1).set(field(0x180, 64), page | 1);
    let table = Maker { driver: &mut driver, uid }.table();
    let number = |opcode| (Input::new(opcode, 16), object::NUMBER);
    // Each kind is recorded separately.
    for (create, (destroy, named)) in [
        (Input::new(0x800, 16), number(0x801)),
        (Input::new(0x816, 16), number(0x817)),
        (umem, number(0xa0a)),
        (table, (Input::new(0x931, 64), create_flow_group_in::TABLE_ID)),
        (Input::new(0x939, 16), (Input::new(0x93a, 16), flow_counter::ID)),
    ] {
        let opcode = header::OPCODE.get(create.bytes());
        let reply = driver.done(create.set(header::UID, uid), 16);
        // All replies have the number at the same offset, with 24 or 32 bits.
        let object = flow_counter::ID.get(&reply);
        assert_eq!(status(&mut driver, end()), BUSY, "{opcode:#x}");
        driver.done(destroy.set(header::UID, uid).set(named, object), 8);
    }
    driver.done(end(), 8);
}

#[test]
fn there_are_no_more_objects_than_announced() {
    let mut driver = driver();
    let objects = Maker { driver: &mut driver, uid: 0 }.all();
    let maker = Maker { driver: &mut driver, uid: 0 };
    let tir = maker.direct(0, objects.rq);
    // The number of each kind is limited by `log_max_tis`, `log_max_rqt`, `log_max_tir` and
    // `log_max_ft_num`; some exist already.
    for (input, exist) in [(maker.tis(0), 1), (maker.rqt([0; 2]), 1), (tir, 2), (maker.table(), 1)]
    {
        let input = input.set(rqtc::RQT_ACTUAL_SIZE.at(CONTEXT), 0);
        let opcode = header::OPCODE.get(input.bytes());
        for _ in exist..1 << 16 {
            driver.create(input.clone());
        }
        assert_eq!(status(&mut driver, input), LIMIT_EXCEEDED, "{opcode:#x}");
    }
}

#[test]
fn there_are_no_more_entries_than_announced() {
    let mut driver = driver();
    let objects = Maker { driver: &mut driver, uid: 0 }.all();
    let mut maker = Maker { driver: &mut driver, uid: 0 };
    let table = maker.create(|maker| maker.table().set(LOG_SIZE, 17));
    let group = maker.create(|maker| {
        maker.group(table).set(create_flow_group_in::END_FLOW_INDEX, (1 << 17) - 1)
    });
    // `log_max_flow` is the limit; one exists already.
    for index in 1..1 << 16 {
        let entry = maker.entry((table, group), index, objects.tir);
        maker.driver.done(entry, 8);
    }
    let entry = maker.entry((table, group), 1 << 16, objects.tir);
    let delete = Input::new(0x938, 64)
        .set(set_fte_in::TABLE_ID, table.into())
        .set(set_fte_in::FLOW_INDEX, 7);
    assert_eq!(status(&mut driver, entry.clone()), LIMIT_EXCEEDED);
    driver.done(delete, 8);
    driver.done(entry, 8);
}

/// The driver uses the last number for objects that all contexts share.
#[test]
fn no_context_gets_the_number_of_shared_objects() {
    let mut driver = driver();
    let numbers: Vec<_> = (1..0xffff).map(|_| user(&mut driver)).collect();
    assert!(!numbers.contains(&0xffff));
    assert_eq!(status(&mut driver, Input::new(0xa04, 64)), LIMIT_EXCEEDED);
}
