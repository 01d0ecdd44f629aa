package qemu

// The values of Options.Accel.
const (
	// AccelAuto takes KVM where a trial machine runs with it, and TCG elsewhere.
	AccelAuto = "auto"
	// AccelKVM is the processor's own virtualization. Without it no machine starts.
	AccelKVM = "kvm"
	// AccelTCG is emulation.
	AccelTCG = "tcg"
)

// AccelEnv names the environment variable with the default of Options.Accel, for
// programs that let their users choose.
const AccelEnv = "BOUVET_QEMU_ACCEL"

// An Acceleration says what runs the guests' instructions.
type Acceleration struct {
	// Name is AccelKVM or AccelTCG.
	Name string
	// Reason says, for people, why it is not KVM; it is empty where it is.
	Reason string
}
