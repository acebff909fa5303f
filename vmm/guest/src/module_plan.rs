//! The kernel modules of one guest: those that its initramfs has, and those that its init loads.

use std::{fs::File, path::Path};

use crate::{
    aliases::AliasIndex,
    error::GuestError,
    guest::{
        GuestConfig, Vmm,
        config::{Driver, ModuleRequest, Software},
    },
    identity::{PciIdentity, matches},
    modinfo::ModInfo,
    modules::{Module, ModuleTree, canonical},
    progress::Progress,
    provision::Toolkit,
};

/// Modules for QEMU's `/share`: a 9P file system of the host, behind a virtio device. The console,
/// the agent's channel and the terminal need none, because a kernel has the driver of serial lines
/// built in.
const QEMU_SHARE_MODULES: [&str; 3] = ["virtio_pci", "9pnet_virtio", "9p"];
/// Modules for `/share` of our own virtual machine: a disk with an image.
const OWN_SHARE_MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", CHECKSUM, "erofs"];
/// The module of the checksum CRC-32C. `erofs` asks for it by another name, so it is not among that
/// module's dependencies. It is loaded if the kernel has it.
const CHECKSUM: &str = "crc32c_generic";
/// Modules for [`Driver::Vfio`]. The agent loads them, and binds the functions.
const VFIO_MODULES: [&str; 2] = ["vfio_iommu_type1", "vfio_pci"];

/// The longest name and the longest parameter of a module, in bytes.
const MAX_NAME: usize = 64;
const MAX_PARAMETER: usize = 1024;

/// The kernel modules of one guest.
#[derive(Debug, Default)]
pub(crate) struct ModulePlan {
    /// The modules in the initramfs, in loading order.
    pub(crate) included: Vec<Module>,
    /// A line for each module that init loads: its name, and its parameters.
    pub(crate) load: String,
}

impl ModulePlan {
    /// Finds the modules of a guest.
    ///
    /// Modules that the configuration names come first, then those by modalias. A function that
    /// `shim`, the built kernel module, has in its own aliases is left to it. Those that `/share`
    /// needs come last.
    ///
    /// # Errors
    /// [`GuestError::Request`] when a name or parameter is impossible, and
    /// [`GuestError::Unsuitable`] when the kernel does not have a named module.
    pub(crate) fn new(
        toolkit: &Toolkit,
        software: &Software,
        share: &[&str],
        shim: Option<&Path>,
        progress: &Progress,
    ) -> Result<Self, GuestError> {
        let named = merged(&software.modules)?;
        let Some(tree) = &toolkit.kernel.modules else {
            return Self::without_tree(toolkit, share, &named);
        };

        let found = toolkit.drivers_not_in_shim(shim, &software.identities, progress)?;

        // Init loads the named modules, then those that a function needs, and then those for
        // `/share`.
        let mut wanted = named;
        for name in found {
            if !wanted.iter().any(|request| request.name == name) {
                wanted.push(ModuleRequest { name, parameters: Vec::new() });
            }
        }

        let vfio = (software.driver == Driver::Vfio).then_some(VFIO_MODULES).into_iter().flatten();
        // Modules that the caller did not name may be missing: the guest then reports what it
        // lacks.
        let unnamed: Vec<&str> = share.iter().copied().chain(vfio).filter(|name| tree.has(name)).collect();
        let names: Vec<&str> = wanted.iter().map(|request| request.name.as_str()).chain(unnamed).collect();
        let included = tree.closure(&names, progress)?;

        wanted.extend(share_requests(share).filter(|module| module.name != CHECKSUM || tree.has(CHECKSUM)));
        Ok(Self { included, load: load_lines(&wanted, Some(tree))? })
    }

    /// Returns the plan for a kernel of whose modules no directory is known.
    fn without_tree(toolkit: &Toolkit, share: &[&str], named: &[ModuleRequest]) -> Result<Self, GuestError> {
        if let Some(ModuleRequest { name, .. }) = named.first() {
            let problem =
                format!("module {name} is required, but no module directory is known for this kernel");
            return Err(GuestError::Unsuitable { path: toolkit.kernel.image.clone(), problem });
        }

        // The caller's initramfs may have the modules for `/share`. Not every kernel has that of
        // the checksum, so init is not asked to load it.
        let wanted: Vec<_> = share_requests(share).filter(|module| module.name != CHECKSUM).collect();
        Ok(Self { included: Vec::new(), load: load_lines(&wanted, None)? })
    }
}

impl Toolkit {
    /// Returns the kernel's own drivers of a function: all modules with an alias that matches, the
    /// preferred one first. There are none for a function that is in the aliases of the guest's
    /// driver [`Driver::Shim`].
    ///
    /// The first call for a kernel without `modules.alias` reads all its modules, which takes some
    /// seconds.
    ///
    /// # Errors
    /// As [`Self::shim`]; [`GuestError::Unsuitable`] when the kernel's aliases are too many.
    pub fn stock_drivers(
        &self,
        driver: Driver,
        identity: PciIdentity,
        progress: &Progress,
    ) -> Result<Vec<String>, GuestError> {
        let shim = match driver {
            Driver::Shim => Some(self.shim(progress)?),
            Driver::None | Driver::Vfio => None,
        };
        self.drivers_not_in_shim(shim.as_deref(), &[identity], progress)
    }

    /// Returns the kernel's own drivers of functions that are not in the aliases of `shim`.
    fn drivers_not_in_shim(
        &self,
        shim: Option<&Path>,
        identities: &[PciIdentity],
        progress: &Progress,
    ) -> Result<Vec<String>, GuestError> {
        let unclaimed = identities_without_alias(shim, identities)?;
        let Some(tree) = self.kernel.modules.as_ref().filter(|_| !unclaimed.is_empty()) else {
            return Ok(Vec::new());
        };

        let index = AliasIndex::of(tree, &self.cache, progress)?;
        let found = unclaimed.iter().flat_map(|identity| index.modules_for(identity));
        Ok(found.map(str::to_owned).collect())
    }
}

impl GuestConfig {
    /// Returns the modules for `/share`, if there is one.
    pub(crate) fn share_modules(&self) -> &'static [&'static str] {
        match (&self.software.share, self.hardware.vmm) {
            (None, _) => &[],
            (Some(_), Vmm::Qemu) => &QEMU_SHARE_MODULES,
            (Some(_), Vmm::Own) => &OWN_SHARE_MODULES,
        }
    }
}

/// Returns the modules for `/share` as requests to init.
fn share_requests(modules: &[&str]) -> impl Iterator<Item = ModuleRequest> {
    modules.iter().map(|&name| ModuleRequest { name: name.into(), parameters: Vec::new() })
}

/// Checks requests, and merges those for the same module.
fn merged(requests: &[ModuleRequest]) -> Result<Vec<ModuleRequest>, GuestError> {
    let mut merged: Vec<ModuleRequest> = Vec::new();
    for request in requests {
        request.check()?;
        let name = canonical(&request.name);

        match merged.iter_mut().find(|other| other.name == name) {
            Some(other) => other.parameters.extend(request.parameters.iter().cloned()),
            None => merged.push(ModuleRequest { name, parameters: request.parameters.clone() }),
        }
    }
    Ok(merged)
}

impl ModuleRequest {
    /// Checks that the name and the parameters are words that init can pass on.
    fn check(&self) -> Result<(), GuestError> {
        let is_name = |name: &str| {
            !name.is_empty()
                && !name.starts_with('-')
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
        };

        if !is_name(&self.name) || self.name.len() > MAX_NAME {
            let name = &self.name;
            return Err(GuestError::Request(format!("{name:?} is no name of a kernel module")));
        }

        let is_parameter = |text: &str| {
            let name = text.split_once('=').map_or(text, |(name, _)| name);
            is_name(name) && text.len() <= MAX_PARAMETER && text.bytes().all(|byte| byte.is_ascii_graphic())
        };

        match self.parameters.iter().find(|text| !is_parameter(text)) {
            Some(text) => Err(GuestError::Request(format!(
                "{text:?} is no parameter of module {}; write PARAM=VALUE without blanks, of at most \
                 {MAX_PARAMETER} bytes",
                self.name
            ))),
            None => Ok(()),
        }
    }
}

/// Returns the identities that the built kernel module does not have in its aliases.
fn identities_without_alias(
    shim: Option<&Path>,
    identities: &[PciIdentity],
) -> Result<Vec<PciIdentity>, GuestError> {
    let Some(shim) = shim.filter(|_| !identities.is_empty()) else { return Ok(identities.to_vec()) };

    let info = File::open(shim).map_err(Into::into).and_then(|file| ModInfo::read(&file));
    let info =
        info.map_err(|error| GuestError::Unsuitable { path: shim.to_owned(), problem: error.to_string() })?;

    let has_no_alias =
        |identity: &&PciIdentity| !info.values("alias").any(|alias| matches(alias, &identity.modalias()));
    Ok(identities.iter().filter(has_no_alias).copied().collect())
}

/// Returns the lines by which init loads modules. Modules that are built into the kernel have none.
fn load_lines(wanted: &[ModuleRequest], tree: Option<&ModuleTree>) -> Result<String, GuestError> {
    let mut lines = String::new();
    for ModuleRequest { name, parameters } in wanted {
        if tree.is_some_and(|tree| tree.has_built_in(name)) {
            if let Some(parameter) = parameters.first() {
                return Err(GuestError::Request(format!(
                    "module {name} is built into the kernel, so it takes no {parameter} at its loading"
                )));
            }
            continue;
        }

        lines.push_str(name);
        for parameter in parameters {
            lines.push(' ');
            lines.push_str(parameter);
        }
        lines.push('\n');
    }

    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modinfo::samples::module_file;

    fn request(name: &str, parameters: &[&str]) -> ModuleRequest {
        let parameters = parameters.iter().map(|&text| text.to_owned()).collect();
        ModuleRequest { name: name.into(), parameters }
    }

    const CARD: PciIdentity =
        PciIdentity { vendor: 0x1efc, device: 1, subsystem_vendor: 0, subsystem: 0, class: 0x02_80_00 };

    #[test]
    fn requests_for_one_module_are_merged_in_their_order() {
        let requests =
            [request("8139too", &["debug=3"]), request("a-b", &[]), request("8139too", &["x=1,2"])];
        let merged = merged(&requests).unwrap();

        assert_eq!(merged, [request("8139too", &["debug=3", "x=1,2"]), request("a_b", &[])]);
        assert_eq!(load_lines(&merged, None).unwrap(), "8139too debug=3 x=1,2\na_b\n");
    }

    #[test]
    fn names_and_parameters_that_a_shell_would_split_are_refused() {
        for name in ["", "a b", "a;b", "-r", "../a/b", "a\n"] {
            assert!(request(name, &[]).check().is_err(), "{name:?}");
        }

        for parameter in ["", "=1", "a=1 2", "a b=1", "a=\n", "-r", &format!("a={}", "x".repeat(1024))] {
            assert!(request("a", &[parameter]).check().is_err(), "{parameter:?}");
        }

        request("gpio-pci-idio-16", &["flag", "list=1,2", "name=*$'\"x:y"]).check().unwrap();
    }

    #[test]
    fn module_that_is_built_in_is_not_loaded_and_takes_no_parameter() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("modules.builtin"), "kernel/drivers/virtio/virtio-pci.ko\n")
            .unwrap();
        let tree = ModuleTree::open(folder.path()).unwrap();

        assert_eq!(load_lines(&[request("virtio_pci", &[])], Some(&tree)).unwrap(), "");
        let error = load_lines(&[request("virtio_pci", &["legacy=1"])], Some(&tree)).unwrap_err();
        assert!(error.to_string().contains("built into the kernel"), "{error}");
    }

    #[test]
    fn function_that_the_kernel_module_names_is_left_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let shim = folder.path().join("shim.ko");
        std::fs::write(&shim, module_file(&["alias=pci:v00001EFCd*sv*sd*bc*sc*i*"])).unwrap();
        let other = PciIdentity { vendor: 0x494f, ..CARD };

        assert_eq!(identities_without_alias(Some(&shim), &[CARD, other]).unwrap(), [other]);
        assert_eq!(identities_without_alias(None, &[CARD, other]).unwrap(), [CARD, other]);
    }

    #[test]
    fn modules_for_the_shared_directory_match_the_virtual_machine() {
        let config = GuestConfig::new("n").vmm(Vmm::Own);
        assert!(config.share_modules().is_empty());

        let with_share = config.share("/srv");
        assert_eq!(with_share.share_modules(), OWN_SHARE_MODULES);
        assert_eq!(with_share.vmm(Vmm::Qemu).share_modules(), QEMU_SHARE_MODULES);
    }
}
