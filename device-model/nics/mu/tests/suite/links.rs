//! Links with errors: check codes, repeated transmissions, and the CRCs of sender and receiver.

use nicforge_core::fabric::Direction;
use nicforge_hwi::{
    mu::PAGE,
    mu_packet::PORTS,
    nd_dcr::{self, link},
};
use nicforge_mu::{LinkChecks, Options, fixed_check, hop_check, noisy_link};

use crate::common::{COUNTERS, DATA, PAYLOAD, Rig, User, Way, pattern};

const LENGTH: usize = 100_000;

/// Returns two nodes with a client each, over links with the bandwidth of Blue Gene/Q's, so that
/// packets carry their payload.
fn timed() -> (Rig, [User; 2]) {
    let mut options = Options::default();
    options.link.bits_per_second = 16_000_000_000;
    let mut rig = Rig::new(&[2], options);
    let users = [0, 1].map(|node| rig.user(node, 0));
    (rig, users)
}

/// Disturbs all links with this noise. Returns their CRCs.
fn disturb(rig: &mut Rig, noise: impl FnMut(&mut [u8], u64) + Send + Clone + 'static) -> Vec<LinkChecks> {
    let mut checks = Vec::new();
    let cables: Vec<_> = rig.network.cables().collect();
    for (link, cable) in rig.links.clone().into_iter().zip(cables) {
        for (direction, from) in [(Direction::Forward, cable.a), (Direction::Backward, cable.b)] {
            let (hook, of_link) = noisy_link(noise.clone());
            rig.bed.fabric().set_fault(link, direction, Some(hook)).unwrap();
            rig.network.show_checks(from.node, from.port, &of_link).unwrap();
            checks.push(of_link);
        }
    }
    checks
}

/// Returns the number of repeated transmissions of all links.
fn repeated(rig: &mut Rig) -> u64 {
    let channels = Options::default().link.credits.len();
    let mut sum = 0;
    for link in rig.links.clone() {
        for direction in [Direction::Forward, Direction::Backward] {
            for channel in 0..channels {
                sum += rig.bed.fabric().link_stats(link, direction, channel).unwrap().retransmissions;
            }
        }
    }
    sum
}

/// Puts data from node 0 to node 1, and returns those that have arrived.
fn put(rig: &mut Rig, users: &mut [User; 2]) -> Vec<u8> {
    users[0].write(PAYLOAD, &pattern(9, LENGTH));
    users[1].write64(COUNTERS, LENGTH as u64);
    users[0].inject(&mut rig.bed, 0, &Way { from: 0, to: 1 }.put(0, 0, 0, PAYLOAD, LENGTH));
    rig.until(|_| users[1].read64(COUNTERS) == 0);
    users[1].read(DATA, LENGTH)
}

/// Reads the CRCs of all links' senders and receivers by the registers of both nodes, and returns
/// those of each pair: users' and the system's, as sent and as received.
fn by_registers(rig: &mut Rig) -> Vec<[[u64; 2]; 2]> {
    let kernels = [0, 1].map(|node| rig.kernel(node));
    let mut read = |node: u32, port: u8, register| {
        let offset = PAGE + nd_dcr::port(port.into()) + register;
        kernels[node as usize].control(&mut rig.bed, offset)
    };

    let cables: Vec<_> = rig.network.cables().collect();
    let ways = cables.into_iter().flat_map(|cable| [(cable.a, cable.b), (cable.b, cable.a)]);
    ways.map(|(from, to)| {
        let pairs =
            [(link::SE_LINK_CRC_USR, link::RE_LINK_CRC_USR), (link::SE_LINK_CRC_SYS, link::RE_LINK_CRC_SYS)];
        pairs.map(|(sent, received)| [read(from.node, from.port, sent), read(to.node, to.port, received)])
    })
    .collect()
}

#[test]
fn registers_of_both_ends_show_the_crcs() {
    let (mut rig, _) = timed();
    assert!(by_registers(&mut rig).iter().all(|crcs| *crcs == [[0; 2]; 2]), "none is computed yet");

    let (mut rig, mut users) = timed();
    let checks = disturb(&mut rig, |bytes, number| bytes[40] ^= u8::from(number == 20));
    assert!(put(&mut rig, &mut users) == pattern(9, LENGTH));
    let of_links = checks.iter().map(|checks| {
        [checks.user(), checks.system()].map(|paired| [u64::from(paired.sent), u64::from(paired.received)])
    });
    assert_eq!(by_registers(&mut rig), of_links.collect::<Vec<_>>());
    assert!(rig.network.show_checks(2, 0, &checks[0]).is_err());
    rig.network.show_checks(0, PORTS - 1, &checks[0]).unwrap();
}

#[test]
fn errors_that_the_codes_find_are_repeated_and_the_crcs_agree() {
    let (mut rig, mut users) = timed();
    // Two bursts of 8 bits, as single errors on a fiber between midplanes make them.
    let checks = disturb(&mut rig, |bytes, number| {
        if number % 7 == 3 {
            bytes[40] ^= 0xff;
            bytes[44] ^= 0xa5;
        }
    });

    assert!(put(&mut rig, &mut users) == pattern(9, LENGTH));
    assert!(repeated(&mut rig) > 0);
    assert!(checks.iter().all(LinkChecks::agree));
    assert!(checks.iter().any(|checks| checks.user().sent != 0));
    assert!(checks.iter().all(|checks| checks.system().sent == 0), "no packet was the system's");
}

#[test]
fn an_error_that_the_codes_miss_shows_in_the_crcs() {
    // A multiple of the codes' generator: seven symbols of 10 bits whose words are all 0.
    let escape = escape();
    let mut zeros = [0; 64];
    apply(&mut zeros, &escape);
    assert_eq!((hop_check(&zeros), fixed_check(&zeros)), ([0; 5], 0));

    let (mut rig, mut users) = timed();
    let checks = disturb(&mut rig, move |bytes, number| {
        if number == 20 {
            apply(&mut bytes[40..], &escape);
        }
    });
    assert!(put(&mut rig, &mut users) != pattern(9, LENGTH));
    assert_eq!(repeated(&mut rig), 0);
    assert!(checks.iter().any(|checks| !checks.agree()));
    assert!(by_registers(&mut rig).iter().flatten().any(|[sent, received]| sent != received));
}

/// Changes the symbols from the first bit of `bytes` on.
fn apply(bytes: &mut [u8], symbols: &[u16]) {
    for (symbol, error) in symbols.iter().enumerate() {
        for bit in (0..10).filter(|bit| error >> bit & 1 == 1) {
            let at = symbol * 10 + bit;
            bytes[at / 8] ^= 1 << (at % 8);
        }
    }
}

/// Returns the coefficients of the product of (x + a^i) for i of 0 to 5, highest first, in the
/// field of 1,024 elements with a^10 = a^3 + 1.
fn escape() -> Vec<u16> {
    let times = |element: u16, power: u32| {
        (0..power).fold(element, |element, _| {
            let doubled = element << 1;
            if doubled >> 10 == 1 { doubled ^ 0x409 } else { doubled }
        })
    };

    let mut product = vec![1];
    for power in 0..6 {
        let mut next = product.clone();
        next.push(0);
        for (index, coefficient) in product.iter().enumerate() {
            next[index + 1] ^= times(*coefficient, power);
        }
        product = next;
    }
    product
}
