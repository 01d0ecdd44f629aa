package agent

import (
	"context"
	"encoding/json"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/wire"
)

// Name is what the agent calls itself.
const Name = "bouvet-agent"

func (s *Server) info() wire.Info {
	return wire.Info{
		Agent: Name, Version: s.version, Protocol: wire.ProtocolVersion, PID: os.Getpid(),
		Capabilities: []string{
			wire.CapExecExtended, wire.CapExecDetach, wire.CapExecBinary,
			wire.CapFiles, wire.CapStreams, wire.CapWatch, wire.CapFreeze,
		},
	}
}

func callProcesses(_ context.Context, s *Server, _ json.RawMessage) (any, error) {
	result := wire.ProcessesResult{Processes: []wire.Process{}}
	for _, p := range s.proc.List() {
		result.Processes = append(result.Processes, wire.Process{
			ID: p.ID, PID: p.PID, Command: p.Args, Dir: p.Dir, User: p.User, TTY: p.TTY,
			StartedMS: p.Started.UnixMilli(), Running: p.Running, Detached: p.Detached,
			ExitCode: int32(p.Status.ExitCode), //nolint:gosec // -1 to 255.
		})
	}
	return result, nil
}

// maxSignal is the largest signal number of Linux.
const maxSignal = 64

func callSignal(_ context.Context, s *Server, params json.RawMessage) (any, error) {
	var p wire.SignalParams
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	switch {
	case (p.ID == "") == (p.PID == 0):
		return nil, invalid("one of id and pid is wanted")
	case p.Signal < 1 || p.Signal > maxSignal:
		return nil, invalid("signal %d is not within 1..%d", p.Signal, maxSignal)
	}
	process := s.proc.ByPID(p.PID)
	if p.ID != "" {
		process = s.proc.Get(p.ID)
	}
	if process == nil {
		return nil, errors.New("no such process: only those that the agent started can be signalled")
	}
	if err := process.Signal(unix.Signal(p.Signal), p.Group); err != nil {
		return nil, refusedFrozen(err)
	}
	return wire.Empty{}, nil
}
