"""Draft length control. Import the controller you need from its module."""
