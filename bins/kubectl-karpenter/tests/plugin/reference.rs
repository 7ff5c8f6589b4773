//! The reference of the plugin's commands.

#[test]
fn reference_page_and_man_pages_have_the_commands() -> anyhow::Result<()> {
    let command = kubectl_karpenter::command();
    let intro = "# Commands of kubectl karpenter\n\n[kubectl karpenter](../kubectl-plugin.md) explains them with examples.\n";
    let flags = reference::flags(&command, &|_| None);
    reference::page("kubectl-karpenter", &format!("{intro}\n{flags}"))?;
    reference::man_pages(&command)
}
