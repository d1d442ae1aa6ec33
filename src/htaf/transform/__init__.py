"""From a model to a new model: conversion, hardening, grids, tuning, spiking neurons, diagnostics."""
