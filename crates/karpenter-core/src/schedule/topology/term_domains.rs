//! The domains that new nodes can be in, by node selector term.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::schedule::compile::algebra::{Algebra, KeyId, ReqId, SetId};
use crate::schedule::compile::bits::Bits;
use crate::schedule::compile::catalogue::Catalogue;
use crate::schedule::compile::group_identity::NodeFilter;
use crate::schedule::compile::ids::{DomainId, RowId};
use crate::schedule::compile::label_domains::{LabelDomains, TermDomains};
use crate::schedule::compile::pools::template::Template;
use crate::schedule::compile::solver::Solver;
use crate::taints::untolerated;

impl Solver {
    /// Returns the domains of a label that new nodes can be in, for each term of a node filter.
    pub(crate) fn term_domains(&self, label: &str, filter: &NodeFilter) -> Arc<[TermDomains]> {
        let key = (label.to_owned(), filter.clone());
        let find = || self.find_term_domains(label, filter).into();
        self.term_domains.get(&key, find)
    }

    fn find_term_domains(&self, label: &str, filter: &NodeFilter) -> Vec<TermDomains> {
        let names = &self.snapshot.config().well_known;
        let labels = self.label_domains(label);
        let mut algebra = self.algebra.layer();
        let key = algebra.key(label, || names.contains(label));
        let tolerated = |template: &&Template| {
            let tolerations = filter.tolerations.as_ref();
            tolerations.is_none_or(|all| untolerated(&template.taints, all).is_none())
        };
        let templates: Vec<&Template> = self.templates.iter().filter(tolerated).collect();
        let mut domains_of = |term| {
            let mut found = TermDomains::default();
            let wanted = algebra.set(term, |key| names.contains(key));
            for template in &templates {
                let catalogue = &self.catalogues[template.catalogue];
                let Some(new) = NewNodes::of(template, catalogue, &mut algebra, wanted) else {
                    continue;
                };
                let offered = catalogue.offered.iter().map(|(set, rows)| (*set, rows));
                let launchable = catalogue.kinds.iter().map(|kind| (kind.set, &kind.rows));
                let offered = new.domains(&mut algebra, key, offered, &labels);
                found.offered.unite(&offered);
                let launchable = new.domains(&mut algebra, key, launchable, &labels);
                found.launchable.unite(&launchable);
            }
            found
        };
        filter.terms.iter().flatten().map(&mut domains_of).collect()
    }
}

/// New nodes of a NodePool that meet a set of requirements.
struct NewNodes<'a> {
    catalogue: &'a Catalogue,
    set: SetId,
    rows: Bits<RowId>,
}

impl<'a> NewNodes<'a> {
    fn of(
        template: &Template,
        catalogue: &'a Catalogue,
        algebra: &mut Algebra,
        wanted: SetId,
    ) -> Option<Self> {
        let set = algebra.join(template.set, wanted)?;
        let mut rows = catalogue.rows_meeting_all(algebra, set);
        rows.intersect(&template.rows);
        Some(Self {
            catalogue,
            set,
            rows,
        })
    }

    /// Returns the domains that they can be in with these offerings: their requirements and the rows that have them.
    fn domains<'o>(
        &self,
        algebra: &mut Algebra,
        key: KeyId,
        offerings: impl Iterator<Item = (SetId, &'o Bits<RowId>)>,
        labels: &LabelDomains,
    ) -> Bits<DomainId> {
        let mut reqs: BTreeSet<ReqId> = BTreeSet::new();
        let mut rest: Bits<RowId> = Bits::default();
        for (offering, rows) in offerings {
            let mut rows = rows.clone();
            rows.intersect(&self.rows);
            if rows.is_empty() || algebra.join(self.set, offering).is_none() {
                continue;
            }
            let Some(req) = algebra.get(offering, key) else {
                rest.unite(&rows);
                continue;
            };
            let mut of_types = rows.iter().map(|row| self.catalogue.requirement(row, key));
            if of_types.any(|of_type| of_type.is_none_or(|of_type| algebra.overlap(of_type, req))) {
                reqs.insert(req);
            }
        }
        let own = algebra.get(self.set, key);
        for row in rest.iter() {
            reqs.extend(self.catalogue.requirement(row, key).or(own));
        }
        let own = own.map(|own| algebra.requirement(own));
        let listed = reqs.iter().map(|req| algebra.requirement(*req));
        listed
            .filter(|requirement| !requirement.is_complement())
            .flat_map(|requirement| requirement.values())
            .filter(|value| own.is_none_or(|own| own.has(value)))
            .filter_map(|value| labels.ids.get(value).copied())
            .collect()
    }
}
