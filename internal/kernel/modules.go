package kernel

import (
	"bytes"
	"debug/elf"
	"fmt"
	"path"
	"strings"
)

// moduleMax bounds a module's file, in bytes.
const moduleMax = 16 << 20

// moduleName is the name by which the kernel knows the module in file.
func moduleName(file string) (name string, ok bool) {
	base, ok := strings.CutSuffix(path.Base(file), ".ko")
	return strings.ReplaceAll(base, "-", "_"), ok && base != ""
}

// modinfo returns the values of a key of a module's description.
func modinfo(module []byte, key string) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, err
	}
	section := f.Section(".modinfo")
	if section == nil || section.Size > 1<<20 {
		return nil, fmt.Errorf("it is no kernel module")
	}
	data, err := section.Data()
	if err != nil {
		return nil, err
	}
	var values []string
	for field := range bytes.SplitSeq(data, []byte{0}) {
		if v, ok := bytes.CutPrefix(field, []byte(key+"=")); ok {
			values = append(values, string(v))
		}
	}
	return values, nil
}

// loadOrder puts the wanted modules, and those that they depend on, in an order in
// which they can be loaded. What read does not know (ok is false) is taken for built
// in if builtin has it.
func loadOrder(wanted []string, modules map[string][]byte, builtin map[string]bool) ([]string, error) {
	var order []string
	state := map[string]int{} // 1 while its dependencies are looked at, 2 when it is in order
	var visit func(name string) error
	visit = func(name string) error {
		switch {
		case state[name] == 2 || builtin[name]:
			return nil
		case state[name] == 1:
			return fmt.Errorf("cannot order modules: %s depends on itself", name)
		}
		state[name] = 1
		module, ok := modules[name]
		if !ok {
			return fmt.Errorf("cannot order modules: the kernel has no %s", name)
		}
		depends, err := modinfo(module, "depends")
		if err != nil {
			return fmt.Errorf("cannot read module %s: %w", name, err)
		}
		soft, err := modinfo(module, "softdep")
		if err != nil {
			return fmt.Errorf("cannot read module %s: %w", name, err)
		}
		for _, list := range depends {
			for dep := range strings.SplitSeq(list, ",") {
				if dep == "" {
					continue
				}
				if err := visit(strings.ReplaceAll(dep, "-", "_")); err != nil {
					return err
				}
			}
		}
		for _, list := range soft {
			// Its algorithms, say: wanted, but only if they are there.
			for dep := range strings.FieldsSeq(strings.TrimPrefix(list, "pre:")) {
				dep = strings.ReplaceAll(dep, "-", "_")
				if _, ok := modules[dep]; ok {
					if err := visit(dep); err != nil {
						return err
					}
				}
			}
		}
		state[name] = 2
		order = append(order, name)
		return nil
	}
	for _, name := range wanted {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}
