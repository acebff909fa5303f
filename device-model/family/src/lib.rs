//! The registry: how a NIC family, or a single kind of device, becomes part of nicforge.
//!
//! A NIC crate implements [`Family`] for its networks, or makes a [`DeviceKind`] for a device that
//! stands alone. [`Families`] is a list of them. A program gets one such list. It can then read
//! machine files with their sections, and serve, run and boot the machines.
//!
//! A family reads its [`Section`]s of a machine file, and writes nodes, functions and links into
//! the [`Plan`] of the machine. A program can make such a plan by hand, too. `nicforge-machine`
//! parses machine files into plans, and builds machines from plans.
//!
//! | module | contents |
//! | --- | --- |
//! | `family` | [`Family`], and what it is made of: [`Role`], [`CounterColumn`] |
//! | `kind` | [`DeviceKind`]: a device for the tables `[[function]]` |
//! | `registry` | [`Families`] |
//! | `section` | [`Section`], the checks of its values, and [`SectionError`] |
//! | `link` | [`LinkSection`]: the values of a machine file for links |
//! | `source` | [`DeviceSource`], which makes a device |
//! | `plan` | [`Plan`] |
//! | `plan_error` | [`PlanError`] |
//!
//! The crate depends on core, and names no NIC.
//!
//! # A family
//!
//! A family of two cards with a cable between them:
//!
//! ```
//! use nicforge_family::{
//!     DeviceSource, Family, LinkSection, LinkSpec, Plan, Role, Section, SectionError, Spanned,
//!     check_range,
//! };
//! # use nicforge_core::{context::Context, device::{Device, Reset, Write}};
//! # use nicforge_core::ids::{Address, AttachmentId};
//! # use nicforge_core::spec::{FunctionSpec, Identity};
//! # const SPEC: FunctionSpec = FunctionSpec::hub(Identity {
//! #     vendor: 0, device: 0, subsystem_vendor: 0, subsystem: 0,
//! #     class: 0xff_00_00, revision: 0,
//! # });
//! # struct Card { seed: u32 }
//! # impl Device for Card {
//! #     fn spec(&self) -> FunctionSpec { SPEC }
//! #     fn read(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &mut [u8]) {}
//! #     fn write(&mut self, _: &mut Context<'_>, _: AttachmentId, _: Address, _: &[u8]) -> Write {
//! #         Write::Accepted
//! #     }
//! #     fn reset(&mut self, _: &mut Context<'_>, _: Reset) {}
//! # }
//! use serde::Deserialize;
//!
//! /// One `[[pair]]` of the machine file.
//! #[derive(Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Pair {
//!     seed: Spanned<u32>,
//!     #[serde(default)]
//!     link: LinkSection,
//! }
//!
//! struct Pairs;
//!
//! const CARD: Role = Role::new("card", "a card of a pair");
//!
//! impl Family for Pairs {
//!     fn table(&self) -> &'static str {
//!         "pair"
//!     }
//!
//!     fn roles(&self) -> &'static [Role] {
//!         &[CARD]
//!     }
//!
//!     fn plan(&self, sections: Vec<Section<'_>>, plan: &mut Plan) -> Result<(), SectionError> {
//!         for (pair, section) in sections.iter().enumerate() {
//!             let Pair { seed, link } = section.parse()?;
//!             let seed = check_range("seed", &seed, 1, 1000)?;
//!             let link = link.with_defaults(LinkSpec::new(1, 4, 1500))?;
//!
//!             let mut ends = Vec::new();
//!             for side in ["a", "b"] {
//!                 let card = DeviceSource::new(move || Card { seed });
//!                 let name = format!("pair{pair}{side}");
//!                 let card = plan.single(&name, CARD, card);
//!                 ends.push((card.map_err(|error| section.refuse(error))?, 0));
//!             }
//!             plan.link(ends[0], ends[1], link).map_err(|error| section.refuse(error))?;
//!         }
//!         Ok(())
//!     }
//! }
//! # let families = nicforge_family::Families::new().family(Pairs);
//! # assert_eq!(families.roles()[0], CARD);
//! ```
#![forbid(unsafe_code)]

mod family;
mod kind;
mod link;
mod plan;
mod plan_error;
mod registry;
mod section;
mod source;

pub use nicforge_core::fabric::LinkSpec;
pub use toml::Spanned;

pub use self::{
    family::{CounterColumn, Family, Role},
    kind::DeviceKind,
    link::LinkSection,
    plan::{FunctionKey, MAX_NAME, NodeKey, Plan, PlannedFunction, PlannedLink, PlannedNode, PortKey},
    plan_error::PlanError,
    registry::Families,
    section::{Section, SectionError, check_range, list_of, range_or, refuse_value},
    source::{DeviceError, DeviceSource},
};
