// Package bouvet runs code that nobody trusts, above all code that a language
// model wrote, in sandboxes: machines of their own, each with an agent inside
// that does what the host asks.
//
// A [Manager] creates sandboxes with a driver; package local opens one that needs
// nothing but this program:
//
//	manager, err := local.Open(ctx, local.Options{})
//	sandbox, err := manager.CreateSandbox(ctx, bouvet.Config{})
//	result, err := sandbox.ExecuteCode(ctx, "python", "print(6 * 7)")
//	fmt.Print(result.Stdout) // 42
//
// A [Sandbox] runs commands and code and reads and writes files. A command whose
// streams matter is a [Cmd], which is used as one of os/exec is:
//
//	cmd := sandbox.Command(ctx, "sort")
//	cmd.Stdin = strings.NewReader("b\na\n")
//	out, err := cmd.Output()
//
// Its end is an [ExitError] unless the exit code is 0. What else the agent can do
// is in [AgentClient], which [Sandbox.Client] returns: files of any size, changes
// of files, TCP connections into the guest, processes that outlive their host.
//
// A sandbox can be paused and resumed, and, where the driver can, saved and copied:
// [Sandbox.Snapshot], [Manager.Restore] and [Sandbox.Fork]. A copy has entropy, time
// and names of its own before anything runs in it.
//
// Contexts bound calls, not lives: a sandbox lives until it is destroyed. A
// context given to a command bounds the command, which is a call. When a call is
// cancelled the agent ends what it was doing for it.
//
// Errors are of a few kinds, listed by [ErrorKinds] and told apart with
// errors.Is: [ErrVM], [ErrConnection], [ErrAgentTimeout], [ErrRPC], [ErrNotFound],
// [ErrInvalidState] and others. [Kind] says how to tell one to a peer or a shell.
//
// Everything that comes out of a sandbox is written by whoever runs inside it.
// The package bounds it, checks it, and never acts on it; text of a guest in an
// error or in the log is quoted. What is handed to the caller is as it came.
package bouvet
