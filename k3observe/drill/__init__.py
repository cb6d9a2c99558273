"""The drill room: simulated engines and devices, real servers on loopback, faults and the notifications they cause."""
