package memcontrol_test

import (
	"testing"

	"github.com/boxpair/boxpair/internal/memcontrol"
	"github.com/boxpair/boxpair/store/storetest"
)

func TestContract(t *testing.T) {
	storetest.Control(t, func(*testing.T) storetest.ControlFixture {
		return storetest.ControlFixture{Store: new(memcontrol.Store)}
	})
}
