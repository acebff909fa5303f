//! The routes of policies, for the deadlock check.

use super::{PolicyError, TablePolicy, TableWord, TorusPolicy, TorusRules, TorusWord};
use crate::{
    deadlock::{Exits, Routing, by_target},
    router::{Decision, Policy, Source},
    shape::{Cabling, Torus},
};

/// Any injection FIFO: the ports of the policies here do not depend on it.
const INJECTED: Source = Source::Injection { fifo: 0 };

/// Returns the routes of a class of packets in dimension order, by the policies themselves. They
/// are also the escape network of its adaptive packets.
///
/// The graph has the virtual channels of the rules; with [`super::Fixed::Bubble`],
/// [`crate::deadlock::bubble`] names its rings.
///
/// # Errors
/// [`PolicyError`] if the rules do not fit the torus.
pub fn escape_routes(torus: &Torus, rules: TorusRules, class: u8) -> Result<impl Routing, PolicyError> {
    let nodes = torus.nodes();
    let first = TorusPolicy::new(torus, 0, rules)?;
    let policies: Result<Vec<_>, _> = (0..nodes).map(|node| first.at(node)).collect();
    let (policies, torus) = (policies?, *torus);
    let places: Vec<_> = (0..nodes).filter_map(|node| torus.coordinates(node)).collect();

    Ok(by_target(nodes, move |node, target, exits: &mut Exits| {
        let (here, there) = (&places[node as usize], &places[target as usize]);
        let word = |ties| TorusWord::of_coordinates(&torus, here, there, ties).with_class(class);

        // Where both directions are equally short, packets take either.
        let (up, down) = (word(0), word(u8::MAX));
        add(policies[node as usize].decide(up.0, INJECTED), exits);
        if down != up {
            add(policies[node as usize].decide(down.0, INJECTED), exits);
        }
    }))
}

/// Returns the routes of a class of packets by the tables of all nodes, in order.
pub fn table_routes(tables: &[TablePolicy], class: u8) -> impl Routing + '_ {
    by_target(tables.len() as u32, move |node, target, exits: &mut Exits| {
        let word = TableWord::new(target, class);
        add(tables[node as usize].decide(word.0, INJECTED), exits);
    })
}

/// Adds the exits of a decision. Those of candidates are the escape channel alone.
fn add(decision: Decision, exits: &mut Exits) {
    match decision {
        Decision::Local => exits.deliver(),
        Decision::One(exit) => exits.link(exit.port, exit.vc),
        Decision::Any(candidates) => {
            if let Some(exit) = candidates.escape {
                exits.link(exit.port, exit.vc);
            }
        }
        Decision::Many(targets) => {
            for port in (0..64).filter(|port| targets.ports >> port & 1 == 1) {
                exits.link(port, targets.vc);
            }
            if targets.local {
                exits.deliver();
            }
        }
        Decision::Drop => {}
    }
}
